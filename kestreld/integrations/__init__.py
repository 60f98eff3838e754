"""kestreld as a part of other software: each package here is the code for one such product."""
