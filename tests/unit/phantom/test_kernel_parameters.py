"""A kernel's parameters, read from its code, and what a launch then takes for its arguments."""

from __future__ import annotations

import ctypes
import shutil
import struct
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.native import build

INVALID_VALUE, NOT_SUPPORTED = 1, 801
FAT_BINARY, CUBIN, ZSTD = 0xBA55ED50, 2, 0x8000
# The code of 40 kernels (see the test), as `zstd -19 --no-check` packs it.
PACKED = bytes.fromhex(
    "28b52ffd00685d1000e6975738f058b50698f2ce790dade4b41afa64c24c9b4588b7aff19a4288cc4cab829b"
    "b93e06f473b00913387eb2a518a518101aee5663152576cb14470053004100bfde09b2f3d075d40d99462c83"
    "528bab9c148593692c8b34a0899c8761c38fe14cd81de80a2a4cf642682d3b1e3b7ec0f4ff97816b8823cefd"
    "e6b90510a61b4d3ea52486c6454cb76aabb55ad65b6dad1567de6cb5f2dafae23b5378242a3c1a0f65c4c732"
    "72325321f199cc5a7cb343ce204b1058029cbdd090f8fb397d763d3a9d8a23b389d19074e64a464ae8e4620c"
    "16578050724a862201c72f968e10a2043367f586a2d8383d3808eb9ba681437fd05cb1c80e37e41e78fa3fee"
    "9af7766db776cb7bafbdf5d22ece9af6666db6664b7badb5d5d22cae9a352e5cd4b4e8851e572b78d5c64c13"
    "130d1030cfd442a44f9f315c96e868c16867ed7afd54f551d2c49f6b84fb3ce628376fc156b02249a5a9882f"
    "c95c0479c71c66b2e05e80d1a821907929fb3306c083421a0312481060201004870910062c680b5d81441257"
    "1fa55151d0a24289c573e009b82060c9916c03a475a65099428d0f4d3c6d2a28aba0f14983679ab34ece2a62"
    "30e2b5aba0f16456e66690be3debc4081cee96cd602a19daad5a984c52b273edc41241ac3aaefc21683705f9"
    "d82c3f9ecf0df99b92a28620a9d02825044da152ee4e8bcff363d97c7c9e1bc7e7589273430900f0e415e39f"
    "d4d4ff01"
)
Parameters = tuple[tuple[int, int], ...]
KERNELS: dict[str, Parameters] = {
    "scale": ((0, 8), (8, 4), (16, 24)), "nothing": (), "lists": ((0, 25208), (25208, 8)),
}  # fmt: skip


def cubin(kernels: dict[str, Parameters]) -> bytes:
    """An ELF file with a section of records for each kernel, the last parameter's first."""
    names, sections, body = b"\0.shstrtab\0", [(0, 0, 0)], b""
    for kernel, parameters in kernels.items():
        records = b"".join(
            record_of(number, offset, size, is_long=sum(parameters[-1]) > 4096)
            for number, (offset, size) in reversed([*enumerate(parameters)])
        )
        if parameters:
            records += struct.pack("<BBH", 3, 0x19, sum(parameters[-1]))
        sections.append((len(names), 64 + len(body), len(records)))
        names += f".nv.info.{kernel}".encode() + b"\0"
        body += records
    sections.append((1, 64 + len(body), len(names)))
    body += names
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, 64 + len(body), 0,
        64, 56, 0, 64, len(sections), len(sections) - 1,
    )  # fmt: skip
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
        for name, offset, size in sections
    )
    return header + body + table


def record_of(number: int, offset: int, size: int, *, is_long: bool) -> bytes:
    """Of a parameter; where all have more than 4 KiB, in the second form."""
    kind, last = (0x45, size) if is_long else (0x17, size << 18 | 0x1F000)
    return struct.pack("<BBHIHHI", 4, kind, 12, 0, number, offset, last)


def stored(data: bytes) -> bytes:
    """A frame of Zstandard whose only block is not packed."""
    head = len(data) << 3 | 1
    return (
        struct.pack("<IBI", 0xFD2FB528, 0b10100000, len(data)) + head.to_bytes(3, "little") + data
    )


def fat_binary(packed: bytes, unpacked_bytes: int) -> bytes:
    """One with one image for sm_90."""
    padded = packed + bytes(-len(packed) % 8)
    image = struct.pack(
        "<HHIQIIHHIIIQQQ", CUBIN, 0x101, 64, len(padded), len(packed), 0, 0, 8, 90, 0, 0,
        ZSTD, 0, unpacked_bytes,
    )  # fmt: skip
    return struct.pack("<IHHQ", FAT_BINARY, 1, 16, len(image) + len(padded)) + image + padded


class Sizes(ctypes.Structure):
    """A dim3."""

    _fields_ = tuple((axis, ctypes.c_uint) for axis in "xyz")


class Driver:
    """The phantom's driver, called as C would."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.kept: list[Any] = []

    def function(self, image: bytes, name: str) -> c_void_p:
        """Of a kernel in code that is freed once it is loaded."""
        module, function = c_void_p(), c_void_p()
        code = ctypes.create_string_buffer(image)
        assert self.library.cuModuleLoadData(byref(module), code) == 0
        ctypes.memset(code, 0xFF, len(code))
        assert self.library.cuModuleGetFunction(byref(function), module, name.encode()) == 0
        return function

    def parameters(self, function: c_void_p) -> Parameters | None:
        """None: not known."""
        count, offset, size = c_size_t(), c_size_t(), c_size_t()
        if self.library.cuFuncGetParamCount(function, byref(count)) == NOT_SUPPORTED:
            return None
        found = []
        for index in range(count.value):
            call = self.library.cuFuncGetParamInfo
            assert call(function, c_size_t(index), byref(offset), byref(size)) == 0
            found.append((offset.value, size.value))
        assert call_beyond(self.library, function, count.value) == INVALID_VALUE
        return tuple(found)

    def block(self, value: bytes) -> int:
        """The address of memory on the device with these bytes."""
        address = c_void_p()
        assert self.library.cudaMalloc(byref(address), c_size_t(4096)) == 0
        assert self.library.cudaMemcpy(address, value, c_size_t(len(value)), 1) == 0
        assert address.value
        return address.value

    def operands(self, name: str, *, first_is_left: bool) -> list[int]:
        """The bytes of the first two operands of a compiled kernel, as the log of work has them: of
        a structure of 128 bytes with input and result in the last 64.
        """
        given, result, left = (self.block(b"numbers") for _ in range(3))
        words = [left + 1024 if first_is_left else 0] + [0] * 7 + [given, result + 512] + [0] * 6
        structure = (c_size_t * 16)(*words)
        packed = stored(cubin({name: ((0, 128),)}))
        code = ctypes.create_string_buffer(fat_binary(packed, len(packed) - 12))
        wrapper = (c_size_t * 3)(0x1466243B1, ctypes.addressof(code), 0)
        self.kept += [code, wrapper, function := ctypes.create_string_buffer(8)]
        register = self.library["__cudaRegisterFatBinary"]
        register.restype = c_void_p
        module = c_void_p(register(wrapper))
        stem = ctypes.create_string_buffer(name.encode())
        self.kept.append(stem)
        self.library["__cudaRegisterFunction"](
            module, function, stem, stem, -1, None, None, None, None, None
        )
        arguments = (c_void_p * 1)(ctypes.addressof(structure))
        self.library.ullage_log_begin()
        grid = Sizes(1, 1, 1)
        launch = self.library.cudaLaunchKernel
        assert launch(function, grid, grid, arguments, c_size_t(0), None) == 0
        row = (ctypes.c_int64 * 16)()
        self.library.ullage_num_works.restype = ctypes.c_uint64
        number = c_size_t(self.library.ullage_num_works() - 1)
        self.library.ullage_work(number, row, byref(c_void_p()))
        return [*row[7:9]]

    def read(self, address: int, count: int) -> bytes:
        """What is known of memory on the device; else zeros."""
        found = ctypes.create_string_buffer(count)
        assert self.library.cudaMemcpy(found, c_void_p(address), c_size_t(count), 2) == 0
        return found.raw


def call_beyond(library: ctypes.CDLL, function: c_void_p, count: int) -> int:
    """Asks for the parameter behind the last."""
    return int(library.cuFuncGetParamInfo(function, c_size_t(count), byref(c_size_t()), None))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """With a GPU; a copy of the library, which reads the device once."""
    monkeypatch.setenv("ULLAGE_PHANTOM", "1")
    monkeypatch.setenv("ULLAGE_NUM_DEVICES", "1")
    monkeypatch.setenv("ULLAGE_DEVICE", "name=Test;capability=9.0;total_bytes=85899345920")
    source = build.build() / build.LIBRARY
    return Driver(Path(shutil.copy(source, tmp_path / "phantom.so")))


@pytest.mark.parametrize("name", KERNELS)
def test_parameters_stand_in_the_code(driver: Driver, name: str) -> None:
    code = cubin(KERNELS)
    assert driver.parameters(driver.function(code, name)) == KERNELS[name]
    packed = fat_binary(stored(code), len(code))
    assert driver.parameters(driver.function(packed, name)) == KERNELS[name]


def test_a_library_lists_its_kernels(driver: Driver) -> None:
    library, count = c_void_p(), ctypes.c_uint()
    code = ctypes.create_string_buffer(cubin(KERNELS))
    assert driver.library.cuLibraryLoadData(byref(library), code) == 0
    assert driver.library.cuLibraryGetKernelCount(byref(count), library) == 0
    assert count.value == len(KERNELS)
    kernels = (c_void_p * len(KERNELS))()
    assert driver.library.cuLibraryEnumerateKernels(kernels, count, library) == 0
    found = {driver.parameters(c_void_p(kernel)) for kernel in kernels}
    assert found == set(KERNELS.values())


def test_of_code_that_is_no_cubin_the_kernels_are_not_known(driver: Driver) -> None:
    library, count = c_void_p(), ctypes.c_uint()
    assert driver.library.cuLibraryLoadData(byref(library), b"// PTX" + bytes(64)) == 0
    assert driver.library.cuLibraryGetKernelCount(byref(count), library) == NOT_SUPPORTED


def test_parameters_with_gaps_or_of_other_kernels_are_not_known(driver: Driver) -> None:
    code = bytearray(cubin(KERNELS))
    assert driver.parameters(driver.function(bytes(code), "other")) is None
    assert driver.parameters(driver.function(b"// PTX" + bytes(64), "scale")) is None
    last = code.index(struct.pack("<BBHIH", 4, 0x17, 12, 0, 2))
    code[last + 8] = 3
    assert driver.parameters(driver.function(bytes(code), "scale")) is None
    code[last + 8], code[last + 1] = 2, 0x18  # a record of another kind
    assert driver.parameters(driver.function(bytes(code), "scale")) is None


def test_packed_code_is_unpacked(driver: Driver) -> None:
    frame = PACKED
    names = [f"kernel_{number}_of_many" for number in range(40)]
    code = cubin({name: ((0, 8), (8, 4 * index)) for index, name in enumerate(names, 1)})
    function = driver.function(fat_binary(frame, len(code)), names[-1])
    assert driver.parameters(function) == ((0, 8), (8, 160))
    for place in range(12, len(frame), 7):  # damaged: not known, or, where nothing checks, other
        damaged = frame[:place] + bytes([frame[place] ^ 0x5A]) + frame[place + 1 :]
        driver.parameters(driver.function(fat_binary(damaged, len(code)), names[-1]))


def test_a_launch_reads_no_more_than_its_arguments(driver: Driver) -> None:
    written, behind, within = (
        driver.block(value) for value in (b"written", b"behind!", b"within!")
    )
    code = cubin({"scale": ((0, 8), (8, 12))})
    # What lies behind an argument is of an earlier call. Eight bytes of the second are read.
    first, second = (c_size_t * 2)(written, behind), (c_size_t * 2)(within, behind)
    arguments = (c_void_p * 3)(ctypes.addressof(first), ctypes.addressof(second), behind)
    function = driver.function(code, "scale")
    status = driver.library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
    assert status == 0
    assert driver.read(written, 7) == driver.read(within, 7) == bytes(7)
    assert driver.read(behind, 7) == b"behind!"


def test_a_descriptor_hands_a_kernel_its_tensor(driver: Driver) -> None:
    """As of the tensor memory accelerator; what the kernel wrote there is not known."""
    written, other = driver.block(b"written"), driver.block(b"another")
    descriptor = ctypes.create_string_buffer(128 + 64)
    aligned = c_void_p(ctypes.addressof(descriptor) + 63 & ~63)
    sizes = (ctypes.c_uint64 * 1)(4096), (ctypes.c_uint32 * 1)(64)
    encode = driver.library.cuTensorMapEncodeTiled
    assert encode(aligned, 0, 1, c_void_p(other), sizes[0], None, sizes[1], sizes[1], 0, 0, 0) == 0
    assert driver.library.cuTensorMapReplaceAddress(aligned, c_void_p(written)) == 0
    arguments = (c_void_p * 1)(aligned.value)
    function = driver.function(cubin({"scale": ((0, 128),)}), "scale")
    status = driver.library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
    assert status == 0
    assert driver.read(written, 7) == bytes(7)
    assert driver.read(other, 7) == b"another"


def test_of_an_unknown_kernel_all_that_may_be_an_argument_is_read(driver: Driver) -> None:
    written, behind = driver.block(b"written"), driver.block(b"behind!")
    first = (c_size_t * 128)(written, behind)
    arguments = (c_void_p * 2)(ctypes.addressof(first), None)
    function = driver.function(b"// PTX" + bytes(64), "scale")
    driver.library.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
    assert driver.read(written, 7) == driver.read(behind, 7) == bytes(7)


def test_a_reduction_has_its_input_first_whatever_stands_before_it(driver: Driver) -> None:
    """Behind tables for 25 dimensions, of which few are set: what an earlier call left is there."""
    name = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfEEEvT1_"
    assert driver.operands(name, first_is_left=True) == driver.operands(name, first_is_left=False)
    other = "_ZN2at6native6kernelILi512EEEvT_"
    assert driver.operands(other, first_is_left=True) != driver.operands(other, first_is_left=False)
