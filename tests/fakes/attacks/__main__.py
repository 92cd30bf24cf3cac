"""One attack: `python -m tests.fakes.attacks NAME`, what it needs as JSON on stdin, its report as JSON on stdout."""

from __future__ import annotations

import json
import sys

from tests.fakes.attacks.hit import Hit
from tests.fakes.attacks.run import ATTACKS

if __name__ == "__main__":
    told = json.load(sys.stdin)
    host, _, port = told["address"].rpartition(":")
    hit = Hit(
        (host.strip("[]"), int(port)),
        bytes.fromhex(told["small"]),
        bytes.fromhex(told["wide"]),
        told["seconds"],
        told["scale"],
    )
    ATTACKS[sys.argv[1]].run(hit)
    print(json.dumps(hit.notes.as_dict()))
