"""The stored formats, by their golden files: docs/reference/fence-formats.md."""

from __future__ import annotations

import json

from conftest import ROOT

from palisade.fences import _stamped, files, s3

FORMATS = ROOT / "vectors" / "formats"


def test_the_state_of_a_folder() -> None:
    golden = (FORMATS / "files.palisade-fence").read_bytes()
    state = files._State.decode(golden)
    assert (state.record.token, state.record.digest, state.pending) == (34, 2**64 - 1, "append 120 report")
    assert state.encode() == golden


def test_the_manifest_in_a_bucket() -> None:
    golden = (FORMATS / "object-store.fence.json").read_bytes().rstrip()
    manifest = s3._Manifest.decode(golden)
    assert (manifest.record.token, manifest.record.digest, len(manifest.keys)) == (34, 2**64 - 1, 2)
    assert manifest.encode() == golden


def test_the_attribute_of_an_item() -> None:
    golden = (FORMATS / "dynamodb.palisade_fence.json").read_text().rstrip()
    record, ids = _stamped.read_fence(json.loads(golden))
    assert (record.token, record.digest, len(ids)) == (34, 2**64 - 1, 2)
    assert _stamped.to_json(_stamped.fence_object(record, ids)) == golden
