"""CUDA kernels for roofs that no library call stands for: FMA chains, reads of L1 and past it.

They are compiled at run time by NVRTC, which libtorch_cuda links, so it is in the process of
every PyTorch for CUDA and no toolkit, compiler or further package is needed. Its C interface and
the driver's calls to load and launch are the oldest and steadiest that CUDA has. What else there
was: Triton wants a C compiler on the user's machine at run time and changes its language;
``torch.cuda._compile_kernel`` is private; cuda-bindings came to torch's dependencies late.

Order of calls: nvrtcCreateProgram, nvrtcCompileProgram, nvrtcGetCUBIN (or PTX for a GPU that is
younger than NVRTC), nvrtcDestroyProgram; cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel.
Modules live as long as the process.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import torch

from roofprobe.ceilings.roofs import UnavailableError

_CHAINS: Final = 8  # independent, so that the latency of one FMA is hidden
_STEPS: Final = 64  # 512 FMAs for 3 instructions of loop: 0.6% at most
LOADS: Final = 4  # of 16 bytes in flight a thread
# Which a thread reads in turn: 16 KiB a block, 64 KiB an SM that holds four blocks. The smallest
# data cache from Volta on is Turing's, 96 KiB, and its SM holds two.
_L1_PIECES: Final = 2
_FMA_THREADS: Final = 256
_READ_THREADS: Final = 512

# x <- seed - x * x stays within [-2, 2] and never settles (the logistic map in other units), so
# operands keep changing: arithmetic on constants draws less power and reads too high. The
# conditions at the end cannot hold and keep the compiler from removing the work.
SOURCE: Final = f"""
#define FMA_CHAINS(NAME, T, FMA)                                                     \\
  extern "C" __global__ void __launch_bounds__({_FMA_THREADS})                       \\
  NAME(T* sink, T top, unsigned rounds) {{                                           \\
    const unsigned thread = blockIdx.x * {_FMA_THREADS}u + threadIdx.x;              \\
    const T seed = top - (T)threadIdx.x * (T)0.00006103515625;                       \\
    T x[{_CHAINS}];                                                                  \\
    _Pragma("unroll") for (int k = 0; k < {_CHAINS}; ++k)                            \\
      x[k] = (T)((thread * {_CHAINS}u + k) * 2654435761u >> 8) * (T)5.9604644775390625e-8; \\
    _Pragma("unroll 1") for (unsigned i = 0; i < rounds; ++i) {{                     \\
      _Pragma("unroll") for (int step = 0; step < {_STEPS}; ++step)                  \\
        _Pragma("unroll") for (int k = 0; k < {_CHAINS}; ++k)                        \\
          x[k] = FMA(x[k], -x[k], seed);                                             \\
    }}                                                                               \\
    bool escaped = false;                                                            \\
    _Pragma("unroll") for (int k = 0; k < {_CHAINS}; ++k) escaped |= !(x[k] > (T)-4); \\
    if (escaped) *sink = x[0];                                                       \\
  }}
FMA_CHAINS(fma_fp32, float, __fmaf_rn)
FMA_CHAINS(fma_fp64, double, __fma_rn)

// The grid's window of 16 bytes a thread moves over `count` such pieces and starts again. Loads
// are relaxed at the scope of the GPU, which L1 may not answer.
extern "C" __global__ void __launch_bounds__({_READ_THREADS})
read_global(const uint4* data, unsigned count, unsigned groups, unsigned* sink) {{
  const unsigned stride = gridDim.x * {_READ_THREADS}u;
  unsigned at = blockIdx.x * {_READ_THREADS}u + threadIdx.x;
  unsigned seen = 0;
  #pragma unroll 1
  for (unsigned i = 0; i < groups; ++i) {{
    uint4 v[{LOADS}];
    #pragma unroll
    for (int k = 0; k < {LOADS}; ++k) {{
      asm volatile("ld.relaxed.gpu.global.v4.u32 {{%0, %1, %2, %3}}, [%4];"
                   : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(data + at));
      at += stride;
      if (at >= count) at -= count;
    }}
    #pragma unroll
    for (int k = 0; k < {LOADS}; ++k) seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }}
  if (seen == 0x9e3779b9u) *sink = seen;
}}

// Every block reads 16 KiB of its own again and again. Loads are relaxed at the scope of the block,
// which L1 may answer. ld.global.ca becomes the same instruction (LDG.STRONG.SM), but the assembler
// moves it and weak loads out of the loop, since their addresses stay the same.
extern "C" __global__ void __launch_bounds__({_READ_THREADS})
read_l1(const uint4* data, unsigned groups, unsigned* sink) {{
  const uint4* own = data + blockIdx.x * {_READ_THREADS * _L1_PIECES}u + threadIdx.x;
  unsigned seen = 0;
  #pragma unroll 1
  for (unsigned i = 0; i < groups; ++i) {{
    uint4 v[{LOADS}];
    #pragma unroll
    for (int k = 0; k < {LOADS}; ++k)
      asm volatile("ld.relaxed.cta.global.v4.u32 {{%0, %1, %2, %3}}, [%4];"
                   : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w)
                   : "l"(own + k % {_L1_PIECES} * {_READ_THREADS}));
    #pragma unroll
    for (int k = 0; k < {LOADS}; ++k) seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }}
  if (seen == 0x9e3779b9u) *sink = seen;
}}
"""
# Without it the compiler makes an FMA of the seed's product and difference, which would count.
_OPTIONS: Final = ("--fmad=false",)

FMA_FLOP_A_ROUND: Final = 2 * _CHAINS * _STEPS  # of each thread; 1 FMA = 2 FLOP
PIECE_BYTE: Final = 16  # that a thread loads at once
L1_BLOCK_BYTE: Final = _READ_THREADS * _L1_PIECES * PIECE_BYTE  # that a block reads again and again

# cuda.h: CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT and CU_SHAREDMEM_CARVEOUT_MAX_L1.
_CARVEOUT: Final = 9
_MAX_L1: Final = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments.

    Attributes:
        run: Launches it on the current stream.
        work: FLOP or bytes of one launch, exactly.
    """

    run: Callable[[], None]
    work: int


def fma_chains(device: torch.device, precision: Literal["fp32", "fp64"], rounds: int) -> Launch:
    """Chains of fused multiply-adds on every CUDA core.

    Args:
        device: The GPU.
        precision: Which FMA.
        rounds: Times that each thread goes through its ``FMA_FLOP_A_ROUND``.

    Raises:
        UnavailableError: it cannot be compiled or loaded.
    """
    kernel = _kernel(device.index or 0, f"fma_{precision}", _FMA_THREADS)
    dtype, number = (
        (torch.float32, ctypes.c_float) if precision == "fp32" else (torch.float64, ctypes.c_double)
    )
    sink = torch.zeros(1, dtype=dtype, device=device)
    run = kernel.bind(device, sink, number(1.99), ctypes.c_uint(rounds))
    return Launch(run, kernel.threads * rounds * FMA_FLOP_A_ROUND)


def sweep_byte(device: torch.device) -> int:
    """Bytes that the whole grid of ``reads`` loads at once: its smallest footprint."""
    return _kernel(device.index or 0, "read_global", _READ_THREADS).threads * PIECE_BYTE


def reads(device: torch.device, data: torch.Tensor, total: int) -> Launch:
    """Loads that go past L1, over and over the same buffer.

    Args:
        device: The GPU.
        data: What is read: contiguous, at least ``sweep_byte`` and less than 32 GiB.
        total: About how many bytes one launch loads.

    Raises:
        UnavailableError: it cannot be compiled or loaded.
    """
    kernel = _kernel(device.index or 0, "read_global", _READ_THREADS)
    count = data.nbytes // PIECE_BYTE
    assert kernel.threads <= count < 2**31 and data.is_contiguous()
    group_byte = kernel.threads * PIECE_BYTE * LOADS
    groups = max(1, total // group_byte)
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    run = kernel.bind(device, data, ctypes.c_uint(count), ctypes.c_uint(groups), sink)
    return Launch(run, groups * group_byte)


def l1_byte(device: torch.device) -> int:
    """Bytes that the blocks of ``l1_reads`` read together."""
    return _kernel(device.index or 0, "read_l1", _READ_THREADS).blocks * L1_BLOCK_BYTE


def l1_group_byte(device: torch.device) -> int:
    """Bytes that ``l1_reads`` loads at a time: what one launch loads is a multiple."""
    return _kernel(device.index or 0, "read_l1", _READ_THREADS).threads * PIECE_BYTE * LOADS


def l1_reads(device: torch.device, data: torch.Tensor, total: int) -> Launch:
    """Loads that L1 answers: each block reads its own ``L1_BLOCK_BYTE`` over and over.

    Args:
        device: The GPU.
        data: What is read: contiguous, ``l1_byte`` or more.
        total: About how many bytes one launch loads.

    Raises:
        UnavailableError: it cannot be compiled or loaded.
    """
    kernel = _kernel(device.index or 0, "read_l1", _READ_THREADS)
    assert kernel.blocks * L1_BLOCK_BYTE <= data.nbytes and data.is_contiguous()
    kernel.prefer_l1()
    group_byte = l1_group_byte(device)
    groups = max(1, total // group_byte)
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    return Launch(kernel.bind(device, data, ctypes.c_uint(groups), sink), groups * group_byte)


class _Kernel:
    """A loaded kernel with a grid that fills the GPU exactly once."""

    def __init__(self, device: int, name: str, block: int) -> None:
        self._driver = _driver()
        self._function = ctypes.c_void_p()
        self._block = block
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # makes the context current on this thread
            self._ask("cuModuleGetFunction", self._function, _module(device), name.encode())
            blocks = ctypes.c_int()
            self._ask(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                blocks,
                self._function,
                ctypes.c_int(block),
                ctypes.c_size_t(0),
            )
        # More blocks than fit would run in a second, half empty wave.
        sm_count = torch.cuda.get_device_properties(device).multi_processor_count
        self.blocks = blocks.value * sm_count
        self.threads = self.blocks * block

    def prefer_l1(self) -> None:
        """Asks for the largest L1 that shared memory leaves."""
        # A wish, whose refusal costs bandwidth at most: the status says nothing of use.
        self._driver.cuFuncSetAttribute(
            self._function, ctypes.c_int(_CARVEOUT), ctypes.c_int(_MAX_L1)
        )

    def bind(self, device: torch.device, *arguments: object) -> Callable[[], None]:
        """A call that launches the kernel; tensors stand for their addresses and are kept."""
        values = [
            ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, torch.Tensor) else argument
            for argument in arguments
        ]
        addresses = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values]  # type: ignore[type-var]
        pointers = (ctypes.c_void_p * len(values))(*addresses)
        kept = (arguments, values)

        def launch() -> None:
            assert kept
            stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
            one = ctypes.c_uint(1)
            grid = (ctypes.c_uint(self.blocks), one, one)
            block = (ctypes.c_uint(self._block), one, one)
            status = self._driver.cuLaunchKernel(
                self._function, *grid, *block, ctypes.c_uint(0), stream, pointers, None
            )
            _check_driver("cuLaunchKernel", status)

        return launch

    def _ask(self, call: str, answer: object, *arguments: object) -> None:
        _check_driver(call, getattr(self._driver, call)(ctypes.byref(answer), *arguments))  # type: ignore[arg-type]


@cache
def _kernel(device: int, name: str, block: int) -> _Kernel:
    return _Kernel(device, name, block)


@cache
def _module(device: int) -> ctypes.c_void_p:
    """The kernels, compiled for and loaded on a device whose context is current."""
    capability = torch.cuda.get_device_capability(device)
    image = compile_for(capability[0] * 10 + capability[1])
    module = ctypes.c_void_p()
    _check_driver("cuModuleLoadData", _driver().cuModuleLoadData(ctypes.byref(module), image))
    return module


def compile_for(arch: int) -> bytes:
    """The kernels as a cubin for an architecture; as PTX of the nearest older one that is known.

    Args:
        arch: Ten times the major and once the minor compute capability. Needs no GPU.

    Raises:
        UnavailableError: there is no NVRTC, or it cannot compile them.
    """
    nvrtc = _nvrtc()
    count = ctypes.c_int()
    _check_nvrtc("nvrtcGetNumSupportedArchs", nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    known = (ctypes.c_int * count.value)()
    _check_nvrtc("nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs(known))
    older = [one for one in known if one <= arch]
    if not older:
        raise UnavailableError(
            f"NVRTC of this PyTorch compiles for compute capability {min(known) / 10} and newer"
        )
    exact = arch in older
    target = f"sm_{arch}" if exact else f"compute_{max(older)}"
    program = ctypes.c_void_p()
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), SOURCE.encode(), b"roofprobe.cu", 0, None, None
    )
    _check_nvrtc("nvrtcCreateProgram", made)
    try:
        options = [f"--gpu-architecture={target}".encode(), *(o.encode() for o in _OPTIONS)]
        status = nvrtc.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        if status != 0:
            log = _text(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0\n ")
            raise UnavailableError(f"the kernel does not compile for {target}: {log[:150]}")
        return _text(nvrtc, program, "CUBIN" if exact else "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check_nvrtc(what, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check_nvrtc(what, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


@cache
def _nvrtc() -> ctypes.CDLL:
    """The NVRTC that this process' PyTorch has loaded, found by its name."""
    if torch.version.cuda is None:
        raise UnavailableError("this PyTorch is built without CUDA, so it brings no NVRTC")
    name = f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise UnavailableError(f"{name}, which PyTorch brings, cannot be loaded: {error}") from None


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnavailableError(f"the CUDA driver cannot be loaded: {error}") from None


def _check_nvrtc(call: str, status: int) -> None:
    if status != 0:
        raise UnavailableError(f"{call} failed with NVRTC status {status}")


def _check_driver(call: str, status: int) -> None:
    if status != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        known = text.value.decode() if text.value else "unknown error"
        raise UnavailableError(f"{call} failed with status {status}: {known}")
