"""What Breakpad's processor (PyPI `symbolic`) makes of a minidump: `minidump_frames.py DUMP [FOLDER…]`.

It has the call frame information of each module's file, looked for where the minidump says and, by its name, in the folders.
Prints one JSON object: reason, address, and each thread's frames as the address of the instruction and how it was found.
"""
import json
import os
import sys

from symbolic.debuginfo import Archive
from symbolic.minidump import CfiCache, FrameInfoMap, ProcessState

dump, folders = sys.argv[1], sys.argv[2:]


def file_of(module):
    places = [module.code_file] + [os.path.join(folder, os.path.basename(module.code_file)) for folder in folders]
    return next((place for place in places if os.path.isfile(place)), None)


rules = FrameInfoMap.new()
modules = []
for module in ProcessState.from_minidump(dump).modules():
    path = file_of(module)
    found = False
    for one in Archive.open(path).iter_objects() if path else []:
        # Breakpad writes it without hyphens, and the age behind it.
        if one.debug_id.replace("-", "").upper() + "0" == module.debug_id:
            rules.add(module.debug_id, CfiCache.from_object(one))
            found = True
    modules.append({"file": module.code_file, "debug_id": module.debug_id, "has_rules": found})
state = ProcessState.from_minidump(dump, rules)
threads = [
    {"id": thread.thread_id, "frames": [{"address": frame.instruction, "trust": frame.trust} for frame in thread.frames()]}
    for thread in state.threads()
]
print(json.dumps({"reason": state.crash_reason, "address": state.crash_address, "threads": threads, "modules": modules}))
