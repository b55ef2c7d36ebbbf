"""Has Relay's own normaliser judge events: one JSON object {"name", "event"} a line in, one {"name", "problems"} a line out.

A problem is an error or a cut that the normaliser notes in `_meta`, and any value of the event that is not there afterwards as it
was. What a server adds is none. Times are not compared as texts: Relay writes them as numbers.
"""
import json
import sys
from datetime import datetime

from sentry_relay.processing import StoreNormalizer

NORMALIZER = StoreNormalizer(
    project_id=1, key_id="1", remove_other=True, enable_trimming=True, max_secs_in_future=60, max_secs_in_past=30 * 86400
)


def meta(tree, path=""):
    for key, value in (tree or {}).items():
        if key == "":
            for error in value.get("err", []):
                yield f"error at {path or '.'}: {error} value={value.get('val')!r:.80}"
            if "rem" in value or "len" in value:
                yield f"cut at {path or '.'}: {value.get('rem')} original length {value.get('len')}"
        else:
            yield from meta(value, f"{path}.{key}")


def is_time(path):
    return path.rsplit(".", 1)[-1] in ("timestamp",)


def same_time(sent, got):
    if isinstance(sent, str):
        sent = datetime.fromisoformat(sent.replace("Z", "+00:00")).timestamp()
    return abs(sent - got) < 1e-5


def diff(sent, got, path=""):
    if isinstance(sent, dict) and isinstance(got, dict):
        for key, value in sent.items():
            if value in (None, {}, []) or path == "" and key == "_meta":
                continue
            if key not in got:
                yield f"lost {path}.{key}: {value!r:.80}"
            else:
                yield from diff(value, got[key], f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(got, list):
        if len(sent) != len(got):
            yield f"number of {path}: {len(sent)} became {len(got)}"
        for place, (one, other) in enumerate(zip(sent, got)):
            yield from diff(one, other, f"{path}[{place}]")
    elif is_time(path):
        if not same_time(sent, got):
            yield f"time at {path}: {sent!r} became {got!r}"
    elif sent != got:
        yield f"changed {path}: {sent!r:.60} became {got!r:.60}"


for line in sys.stdin:
    given = json.loads(line)
    event = given["event"]
    out = NORMALIZER.normalize_event(json.loads(json.dumps(event)))
    # Relay turns the map of tags into pairs.
    out["tags"] = {key: value for key, value in out.get("tags") or []}
    problems = list(meta(out.get("_meta"))) + list(diff(event, out))
    print(json.dumps({"name": given["name"], "problems": problems}), flush=True)
