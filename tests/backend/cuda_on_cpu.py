"""CUDA kernels run on a CPU, thread by thread, where there is no GPU: what they compute is then tested everywhere.

The source is compiled as C++ by g++. Every thread of a block is a thread of the system, and threads wait for each other
where CUDA says so; blocks run one after the other. Slow: for graphs of a few nodes.
"""

import ctypes
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.backend import fused

SOURCE = Path(fused.__file__).with_suffix(".cu").read_text()
NAMES = re.findall(r'extern "C" __global__ void (\w+)', SOURCE)
BEFORE = """
#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>
struct Place { int x, y, z; };
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static std::unique_ptr<std::barrier<>> of_block;
static std::vector<std::unique_ptr<std::barrier<>>> of_warps;
static std::vector<float> exchanged;
float shared[1 << 14];
#define __global__
#define __device__ static
#define __shared__
static float rsqrtf(float value) { return 1 / std::sqrt(value); }
static float __int_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static void __syncthreads() { of_block->arrive_and_wait(); }
template <class T>
static T __shfl_xor_sync(unsigned, T value, int step) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, warp = thread / 32;
  std::memcpy(&exchanged[thread], &value, 4);
  of_warps[warp]->arrive_and_wait();
  T found;
  std::memcpy(&found, &exchanged[thread ^ step], 4);
  of_warps[warp]->arrive_and_wait();
  return found;
}
"""
AFTER = """
template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*reinterpret_cast<A*>(arguments[I])...);
}
template <class... A>
void started(void (*kernel)(A...), void** arguments, int across, int down, int width, int height) {
  const int threads = width * height;
  blockDim = {width, height, 1};
  gridDim = {across, down, 1};
  exchanged.resize(threads);
  for (int y = 0; y < down; ++y)
    for (int x = 0; x < across; ++x) {
      of_block = std::make_unique<std::barrier<>>(threads);
      of_warps.clear();
      for (int warp = 0; warp < (threads + 31) / 32; ++warp) of_warps.push_back(std::make_unique<std::barrier<>>(32));
      std::vector<std::thread> all;
      for (int thread = 0; thread < threads; ++thread)
        all.emplace_back([=] {
          threadIdx = {thread % width, thread / width, 0};
          blockIdx = {x, y, 0};
          call(kernel, arguments, std::index_sequence_for<A...>{});
        });
      for (auto& one : all) one.join();
    }
}
"""
START = """
extern "C" void start_{name}(void** arguments, int across, int down, int width, int height) {{
  started({name}, arguments, across, down, width, height);
}}
"""


class Kernels:
    """Stands in for `fused._launch`."""

    def __init__(self, folder: Path) -> None:
        self.started, self._lock = list[str](), threading.Lock()
        source, made = folder / "fused.cpp", folder / "fused.so"
        source.write_text(BEFORE + SOURCE + AFTER + "".join(START.format(name=name) for name in NAMES))
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True)
        self._library = ctypes.CDLL(str(made))

    def __call__(
        self, name: str, across: int, down: int, width: int, height: int, arguments: list[Any], shared: int = 0
    ) -> None:
        self.started.append(name)
        if not (across and down):
            return
        held = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else ctypes.c_int(one) for one in arguments
        ]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
        with self._lock:  # batches are made in another thread
            getattr(self._library, f"start_{name}")(pointers, across, down, width, height)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    return Kernels(tmp_path_factory.mktemp("kernels"))
