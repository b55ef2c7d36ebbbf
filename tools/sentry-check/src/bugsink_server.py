"""A Bugsink server for the tests: `bugsink_server.py setup`, `… read EVENT_ID`, `… forget_quota`.

Each prints one JSON object as its last line. The server's own models are used, so what is read is what the server has.
"""
import json
import os
import sys

sys.path.insert(0, os.getcwd())
os.environ["DJANGO_SETTINGS_MODULE"] = "bugsink_conf"

import django

django.setup()

from django.core.management import call_command


def setup():
    call_command("migrate", verbosity=0)
    call_command("migrate", "snappea", database="snappea", verbosity=0)
    os.environ["CREATE_SUPERUSER"] = "admin@example.org:not-a-secret"
    call_command("prestart")
    from bsmain.models import AuthToken
    from projects.models import Project
    from teams.models import Team

    team = Team.objects.create(name="crash")
    project = Project.objects.create(team=team, name="native")
    limited = Project.objects.create(team=team, name="limited")
    token = AuthToken.create_full_access().token
    return {"dsn": project.dsn, "slug": project.slug, "limited_dsn": limited.dsn, "token": token}


def read(event_id):
    from django.contrib.auth import get_user_model
    from django.test import Client
    from events.models import Event
    from files.models import FileMetadata
    from ingest.models import Envelope

    events = Event.objects.filter(event_id=event_id)
    found = {
        "events": [json.loads(event.get_raw_data() if hasattr(event, "get_raw_data") else event.data) for event in events],
        "number_of_all_events": Event.objects.filter(project__name="native").count(),
        "number_of_limited_events": Event.objects.filter(project__name="limited").count(),
        "envelopes": [bytes(envelope.data).decode("utf-8", "replace") for envelope in Envelope.objects.order_by("id")],
        "debug_ids": [str(file.debug_id) for file in FileMetadata.objects.all()],
    }
    if events:
        event = events[0]
        client = Client()
        client.force_login(get_user_model().objects.first())
        page = client.get(f"/issues/issue/{event.issue_id}/event/{event.id}/", headers={"host": "127.0.0.1"})
        found["page_status"] = page.status_code
        found["page"] = page.content.decode()
        found["title"] = f"{event.calculated_type} {event.calculated_value}"
        found["last_frame_function"] = event.last_frame_function
    return found


def forget_quota():
    from phonehome.models import Installation
    from projects.models import Project

    Project.objects.update(quota_exceeded_until=None)
    Installation.objects.update(quota_exceeded_until=None)
    return {}


print()
print(json.dumps({"setup": setup, "read": read, "forget_quota": forget_quota}[sys.argv[1]](*sys.argv[2:])))
