"""What fills the terminal: the table, a queue's details, and the questions in between."""
