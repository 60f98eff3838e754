"""The door to the disk: what is promised of it beyond the calls it passes on."""

from random import Random

from kestreld.files import FileLayer
from tests.simulation.disk import Disk, random_power_cut
from tests.simulation.process_files import ProcessFiles


def test_a_power_cut_takes_away_no_folder_that_was_made_to_last() -> None:
    for seed in range(50):
        disk = Disk()
        files: FileLayer = ProcessFiles(disk)
        files.make_lasting_dir("/var/lib/kestreld/spool")
        files.make_lasting_dir("/var/lib/kestreld/spool")  # one that exists is fine
        assert ProcessFiles(random_power_cut(disk, Random(seed))).is_dir("/var/lib/kestreld/spool")
