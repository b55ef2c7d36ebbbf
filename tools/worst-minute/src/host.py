"""Installs Coroner by its C interface, and does what the words on the command line say."""
import ctypes
import faulthandler
import os
import sys

library, host, words = sys.argv[1], sys.argv[2], sys.argv[3:]
if "faulthandler" in words:
    faulthandler.enable()


def trap():
    """A trap of WebAssembly, as an exception."""
    import wasmtime

    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, '(module (memory 1) (func (export "f") (result i32) (i32.load (i32.const -1))))')
    store = wasmtime.Store(engine)
    function = wasmtime.Instance(store, module, []).exports(store)["f"]
    for _ in range(20):
        try:
            function(store)
            sys.exit(5)
        except wasmtime.Trap:
            pass


if "trap-before" in words:
    trap()
coroner = ctypes.CDLL(library)
coroner.coroner_config_new.restype = ctypes.c_void_p
config = ctypes.c_void_p(coroner.coroner_config_new(b"crash-program"))
coroner.coroner_config_set_store_dir(config, os.environb[b"CORONER_STORE"])
if "first" in words:
    coroner.coroner_config_set_chain_first(config, ctypes.c_bool(True))
status = coroner.coroner_install(config)
if status:
    sys.exit(f"not installed: status {status}")
if "trap" in words:
    trap()
if "errors" in words:
    ctypes.CDLL(host).host_report_errors()
if "crash" in words:
    ctypes.memset(0, 1, 1)
