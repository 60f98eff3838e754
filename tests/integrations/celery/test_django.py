"""Django with Celery: a small project, its worker, and its beat."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, running_daemon
from tests.support.process import environment
from tests.support.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("django") is None, reason="needs Django: pip install django"),
]

SETTINGS = """
import os
BASE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["shop", *os.environ.get("MORE_APPS", "").split()]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.path.join(BASE, "db"),
    "OPTIONS": {"timeout": 30}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_BROKER_URL = os.environ["BROKER"]
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"lease_s": 5}
"""
CELERY = """
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""
MODELS = """
from django.db import models
class Order(models.Model):
    is_shipped = models.BooleanField(default=False)
"""
TASKS = """
from celery import shared_task
from shop.models import Order
@shared_task
def ship(number):
    order = Order.objects.get(pk=number)
    order.is_shipped = True
    order.save()
"""
SHELL = """
import django
import shop
django.setup()
from django.core.management import call_command
from django.db import transaction
from shop.models import Order
from shop.tasks import ship

def waiting():
    with shop.app.connection_for_read() as connection:
        return connection.SimpleQueue("celery").qsize()

"""
ORDERS = (
    SHELL
    + """
with transaction.atomic():
    ship.delay_on_commit(Order.objects.create().pk)
    number = Order.objects.create().pk
    transaction.on_commit(lambda: ship.delay(number))
    assert waiting() == 0, "sent before the commit"
assert waiting() == 2
try:
    with transaction.atomic():
        ship.delay_on_commit(Order.objects.create().pk)
        raise KeyError
except KeyError:
    pass
assert waiting() == 2, "sent in spite of the rollback"
"""
)
SHIPPED = SHELL + "print(Order.objects.filter(is_shipped=True).count(), Order.objects.count())"
BEATS = (
    SHELL
    + """
import datetime, json, time
from celery.signals import after_task_publish
from django.utils.timezone import now
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler
often, _ = IntervalSchedule.objects.get_or_create(every=400_000, period=IntervalSchedule.MICROSECONDS)
minutes, _ = CrontabSchedule.objects.get_or_create()
PeriodicTask.objects.create(name="often", task="t", interval=often, queue="often")
while now().second > 50:
    time.sleep(0.1)
hour_ago = now() - datetime.timedelta(hours=1)
PeriodicTask.objects.create(name="minutes", task="t", crontab=minutes, queue="minutes", last_run_at=hour_ago)
sent = []

@after_task_publish.connect(weak=False)
def count(headers=None, **kwargs):
    sent.append(headers["periodic_task_name"])

beats = [DatabaseScheduler(app=shop.app)]
time.sleep(0.2)
beats.append(DatabaseScheduler(app=shop.app))
while sent.count("often") < 8:
    for one in beats:
        one.tick()
    time.sleep(0.01)
with shop.app.connection_for_read() as connection:
    stored = {name: connection.SimpleQueue(name).qsize() for name in ("often", "minutes")}
print(json.dumps([stored, {name: sent.count(name) for name in stored}]))
"""
)


class Project:
    """A Django project with one app, in a folder, and a database of its own."""

    def __init__(self, folder: Path, daemon: Daemon, *apps: str) -> None:
        self.folder = folder
        self.variables = environment() | {
            "BROKER": f"kestrel://{daemon.address}",
            "MORE_APPS": " ".join(apps),
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": str(folder),
        }
        package = folder / "shop"
        package.mkdir()
        modules = {"settings": SETTINGS, "celery": CELERY, "models": MODELS, "tasks": TASKS}
        modules["__init__"] = "from shop.celery import app\n__all__ = ['app']\n"
        for name, text in modules.items():
            (package / f"{name}.py").write_text(text)
        self.run(
            "import django; django.setup()\nfrom django.core.management import call_command as c\n"
            "c('migrate', run_syncdb=True, verbosity=0)"
        )

    def run(self, program: str) -> str:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=self.variables, timeout=50)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def test_a_task_that_is_sent_on_commit_finds_what_was_committed(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        project = Project(tmp_path, daemon)
        project.run(ORDERS)
        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-l", "INFO"]
        log = tmp_path / "worker.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(command, cwd=tmp_path, env=project.variables, stdout=output, stderr=output)
        try:
            until(lambda: log.read_text().count(" succeeded in ") == 2 or worker.poll() is not None, "both tasks")
            assert worker.poll() is None, log.read_text()
            assert project.run(SHIPPED) == "2 2"
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.skipif(
    importlib.util.find_spec("django_celery_beat") is None, reason="needs pip install django-celery-beat"
)
def test_two_beats_of_django_celery_beat_send_each_due_task_once(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "server") as daemon:
        project = Project(tmp_path, daemon, "django_celery_beat")
        stored, sent = json.loads(project.run(BEATS).splitlines()[-1])
    print(f"two beats sent {sent}, stored are {stored}")
    assert sent["minutes"] == 2
    assert stored["minutes"] == 1
    assert sent["often"] / 2 <= stored["often"] < sent["often"]
