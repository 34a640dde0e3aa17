import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchreduce.sim.p4runtime.bytestrings import decode, encode
from switchreduce.sim.p4runtime.status import RequestError

values = st.integers(0, 2**128 - 1)


@given(values)
def test_the_canonical_string_is_the_shortest_that_holds_the_value(value: int) -> None:
    string = encode(value)
    assert int.from_bytes(string, "big") == value
    assert len(string) >= 1
    assert len(string) == 1 or string[0] != 0


@given(values, st.integers(0, 20), st.integers(0, 8))
def test_leading_zeros_change_nothing(value: int, zeros: int, spare_bits: int) -> None:
    width = max(1, value.bit_length()) + spare_bits
    assert decode(bytes(zeros) + encode(value), width, "field") == value


@given(st.integers(1, 2**128 - 1), st.integers(0, 20))
def test_a_value_that_does_not_fit_is_refused_by_name(value: int, zeros: int) -> None:
    with pytest.raises(RequestError, match="table t, key k") as refused:
        decode(bytes(zeros) + encode(value), value.bit_length() - 1, "table t, key k")
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_the_empty_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        decode(b"", 8, "field")
