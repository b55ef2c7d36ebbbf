# Bugsink for one user on the loopback interface; read by `bugsink_server.py` and gunicorn. Its data are where
# CORONER_BUGSINK_DATA says, its port is CORONER_BUGSINK_PORT.
import os

from bugsink.settings.default import *  # noqa: F401,F403
from bugsink.settings.default import DATABASES
from bugsink.conf_utils import eat_your_own_dogfood

_DATA = os.environ["CORONER_BUGSINK_DATA"]

# It guards sessions of a server that lives for a minute, on the loopback interface.
SECRET_KEY = "a-server-of-tests-has-no-secrets-at-all-0123456789abcdefghij"
eat_your_own_dogfood(None)
TIME_ZONE = "UTC"
# An event is in the database when its request is answered.
SNAPPEA = {"TASK_ALWAYS_EAGER": True}
EMAIL_BACKEND = "bugsink.email_backends.QuietConsoleEmailBackend"
for _name in DATABASES:
    DATABASES[_name]["NAME"] = os.path.join(_DATA, _name + ".sqlite3")
BUGSINK = {
    "BASE_URL": "http://127.0.0.1:" + os.environ["CORONER_BUGSINK_PORT"],
    "SINGLE_USER": True,
    "SINGLE_TEAM": True,
    "USER_REGISTRATION": "CB_NOBODY",
    "PHONEHOME": False,
    # The envelopes as they came, also those that were refused.
    "KEEP_ENVELOPES": 500,
    # Debug files are taken only with it.
    "FEATURE_MINIDUMPS": True,
    "VALIDATE_ON_DIGEST": "warn",
    "INGEST_STORE_BASE_DIR": os.path.join(_DATA, "ingest"),
}
if os.environ.get("CORONER_BUGSINK_QUOTA"):
    # So many events in five minutes.
    BUGSINK["MAX_EVENTS_PER_PROJECT_PER_5_MINUTES"] = int(os.environ["CORONER_BUGSINK_QUOTA"])
