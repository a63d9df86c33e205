"""One tree of errors, and the same error on both ends of the wire."""

import grpc
import pytest

import crowfly
from crowfly import errors


def leaves() -> list[type[errors.CrowflyError]]:
    return errors.CrowflyError.__subclasses__()


def test_every_error_has_a_status_of_its_own() -> None:
    statuses = [leaf.grpc_status for leaf in leaves()]
    assert len(set(statuses)) == len(statuses)
    assert grpc.StatusCode.UNKNOWN not in statuses


@pytest.mark.parametrize("kind", leaves())
def test_an_error_comes_back_from_the_wire_as_itself(kind: type[errors.CrowflyError]) -> None:
    text = "max_tokens=0: 모델 needs 1 or more"
    metadata = grpc.aio.Metadata()
    failed = grpc.aio.AioRpcError(kind.grpc_status, metadata, metadata, details=text)
    back = errors.from_grpc(failed)
    assert type(back) is kind
    assert str(back) == text


def test_an_unforeseen_status_is_an_internal_error_that_names_it() -> None:
    metadata = grpc.aio.Metadata()
    failed = grpc.aio.AioRpcError(grpc.StatusCode.DATA_LOSS, metadata, metadata, details="x")
    back = errors.from_grpc(failed)
    assert type(back) is errors.InternalError
    assert "DATA_LOSS" in str(back)


def test_all_public_errors_can_be_imported_from_the_top() -> None:
    assert {leaf.__name__ for leaf in leaves()} <= set(crowfly.__all__)
    assert all(hasattr(crowfly, name) for name in crowfly.__all__)
