"""What is said of the protocol without the library agrees with the library."""

import mcp_types
import pytest
from mcp.server.connection import allowed_log_levels
from mcp_types import version

from everhold.mcp import protocol


def test_the_versions_are_those_of_the_library():
    assert protocol.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert protocol.MODERN_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


def test_the_keys_and_codes_are_those_of_the_library():
    pairs = {
        "PROTOCOL_VERSION_KEY": "PROTOCOL_VERSION_META_KEY",
        "CLIENT_INFO_KEY": "CLIENT_INFO_META_KEY",
        "CLIENT_CAPABILITIES_KEY": "CLIENT_CAPABILITIES_META_KEY",
        "LOG_LEVEL_META_KEY": "LOG_LEVEL_META_KEY",
        "SERVER_INFO_KEY": "SERVER_INFO_META_KEY",
        **{
            name: name
            for name in (
                "PARSE_ERROR",
                "INVALID_REQUEST",
                "METHOD_NOT_FOUND",
                "INVALID_PARAMS",
                "INTERNAL_ERROR",
                "CONNECTION_CLOSED",
            )
        },
    }
    assert {ours: getattr(protocol, ours) for ours in pairs} == {
        ours: getattr(mcp_types, theirs) for ours, theirs in pairs.items()
    }


@pytest.mark.parametrize("version", [*protocol.HANDSHAKE_VERSIONS, *protocol.MODERN_VERSIONS])
@pytest.mark.parametrize("level", [None, "no level", *protocol.LOG_LEVELS])
def test_the_logs_that_may_be_sent_are_those_of_the_library(version, level):
    meta = None if level is None else {protocol.LOG_LEVEL_META_KEY: level}
    assert protocol.list_deliverable_levels(version, meta) == allowed_log_levels(version, meta)
