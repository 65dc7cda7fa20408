"""What the worker tests run in a worker."""

import ctypes
import os
import sys
import threading
import time


def echo(payload, channel):
    channel.send(payload)
    channel.send(os.getpid())


def segfault(payload, channel):
    channel.enter(payload)
    ctypes.string_at(0)


def leave(payload, channel):
    channel.enter(0)
    os._exit(payload)


def hang(payload, channel):
    channel.enter(payload)
    threading.Event().wait()


def hang_after_progress(payload, channel):
    for index in range(payload):
        channel.enter(index)
        time.sleep(0.3)


def print_and_die(payload, channel):
    print("said on the output")
    print("said on the error", file=sys.stderr)
    sys.stdout.flush()
    os.abort()


def abort_with_bad_alloc(payload, channel):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def allocate(payload, channel):
    try:
        bytearray(payload)
    except MemoryError:
        channel.send("MemoryError")
    else:
        channel.send("allocated")


def main_module_name(payload, channel):
    channel.send(getattr(sys.modules["__main__"], "__file__", None))
