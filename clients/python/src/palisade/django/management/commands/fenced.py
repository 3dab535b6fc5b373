"""`manage.py fenced [--wait 5m] LOCK COMMAND …`: a command that holds a lock, with every write of it fenced."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from palisade import Client, LockHeld, PalisadeError
from palisade.django import fenced
from palisade.fences import rejection


class Command(BaseCommand):  # type: ignore[misc]
    help = "Runs another command while this process holds a lock, and fences every transaction of the database."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("lock", help="the name of the lock, and of the resource that is claimed")
        parser.add_argument("--wait", default="0s", help="how long to wait for the lock, such as 5m; 0s")
        parser.add_argument("--ttl", default="15s", help="the lease; 15s")
        parser.add_argument("--using", default=DEFAULT_DB_ALIAS, help="the database; default")
        parser.add_argument("command", nargs=argparse.REMAINDER, help="the command with its arguments")

    def handle(self, *arguments: Any, **options: Any) -> None:
        if not options["command"]:
            raise CommandError("name a command: manage.py fenced schema migrate")
        try:
            with (
                Client() as client,
                client.lock(options["lock"], ttl=options["ttl"], wait=options["wait"]) as grant,
                fenced(options["lock"], grant, options["using"]),
            ):
                call_command(*options["command"])
        except LockHeld as held:
            raise CommandError(f"another process has the lock: {held}") from held
        except PalisadeError as error:
            raise CommandError(str(error)) from error
        except Exception as error:
            refused = rejection(error)
            if refused is None:
                raise
            raise CommandError(f"{options['lock']}: {refused}") from error
