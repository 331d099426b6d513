"""Documents that carry the SHA-256 of themselves: one flipped bit, one edit by hand, and they are not believed."""

from collections.abc import Mapping
from typing import Any

from bayesnde_cli.artifacts.canonical import json_bytes
from bayesnde_cli.artifacts.fingerprint import sha256_json

SEAL = "sha256"


def sealed_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as canonical JSON, with the hash of all that it says."""
    return json_bytes({**document, SEAL: sha256_json(document)})


def broken_seal(document: Mapping[str, Any], seal: object) -> str | None:
    """What is wrong with the seal that came with a document, if anything."""
    if seal is None:
        return f"{SEAL} is not there"
    return None if seal == sha256_json(document) else f"it does not say what its own {SEAL} says"
