"""The host backend's transform of a .cu file, and what it refuses."""

import re

import pytest
from host_build import COMPILERS, compile_text

from labkit import host

# ---- what is refused ----

REFUSED = {
    "asm": '__global__ void k(float* x) {\n    asm("tanh.approx.f32 %0, %0;" : "+f"(*x));\n}',
    "asm ": '__device__ void f() {\n    __asm__ volatile("bar.sync 0;");\n}',
    "__managed__": "\n__managed__ int x;",
    "__cluster_dims__": "\n__global__ void __cluster_dims__(2, 1, 1) k() {}",
    "cudaMalloc": "void f(void** p) {\n    cudaMalloc(p, 4);\n}",
    "cudaFree": "void f(void* p) {\n    cudaFree(p);\n}",
    "cudaMemcpy": "void f(int* p) {\n    cudaMemcpy(p, p + 1, 4, cudaMemcpyDeviceToHost);\n}",
    "cudaMemcpyToSymbol": "__constant__ int t = 3;\nvoid f(int v) { cudaMemcpyToSymbol(t, &v, 4); }",
    "__constant__": "\n__constant__ float table[16];",
    "cudaStreamCreate": "void f(cudaStream_t s) {\n    cudaStreamCreate(&s);\n}",
    "cudaEventRecord": "template <class E> void f(E e) {\n    cudaEventRecord(e);\n}",
    "cudaLaunchKernel": "void f(void* k) {\n    cudaLaunchKernel(k, 1, 1, nullptr, 0, nullptr);\n}",
    "cudaLaunchCooperativeKernel": "void f(void* k) {\n    cudaLaunchCooperativeKernel(k, 1, 1, nullptr);\n}",
    "cudaOccupancyMaxPotentialBlockSize":
        "void f(int* n, void* k) {\n    cudaOccupancyMaxPotentialBlockSize(n, n, k, 0, 0);\n}",
    "cudaGetDeviceProperties": "template <class P> void f(P p) {\n    cudaGetDeviceProperties(&p, 0);\n}",
    "cudaTextureObject_t": "\n__global__ void k(cudaTextureObject_t t) {}",
    "tex2D": "template <class T> __device__ float f(T t) {\n    return tex2D<float>(t, 0, 0);\n}",
    "__nanosleep": "__device__ void f() {\n    __nanosleep(10);\n}",
    "clock64": "__device__ long long f() {\n    return clock64();\n}",
    "__trap": "__device__ void f() {\n    __trap();\n}",
    "__shfl_down": "__device__ float f(float x) {\n    return __shfl_down(x, 1);\n}",
    "__ballot": "__device__ int f(int x) {\n    return __ballot(x);\n}",
    "__fadd_rz": "__device__ float f(float x) {\n    return __fadd_rz(x, x);\n}",
    "__dp4a": "__device__ int f(int x) {\n    return __dp4a(x, x, 0);\n}",
    "cudaFuncSetAttribute": "__global__ void k() {}\nint f() { return cudaFuncSetAttribute((const void*)k, "
                            "cudaFuncAttributeMaxDynamicSharedMemorySize, 1); }",
    "cooperative_groups.h": "\n#include <cooperative_groups.h>",
    "mma.h": "\n#include <mma.h>",
    "cuda/barrier": "\n#include <cuda/barrier>",
    "cub/cub.cuh": "\n#include <cub/cub.cuh>",
    "curand_kernel.h": "\n#include <curand_kernel.h>",
    "__global__": '#include "kernel_in_header.h"\n',
    "__shared__": '#include "shared_in_header.h"\n',
}


@pytest.mark.parametrize("cxx", COMPILERS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_line(tmp_path, name, cxx):
    (tmp_path / "kernel_in_header.h").write_text("#pragma once\n__global__ void k() {}\n")
    (tmp_path / "shared_in_header.h").write_text(
        "#pragma once\ninline float f() {\n    extern __shared__ float x[];\n    return x[0];\n}\n")
    done, _ = compile_text(REFUSED[name], tmp_path, flags=["-fsyntax-only", "-I", tmp_path], cxx=cxx)
    assert done.returncode != 0
    headers = {"__global__": "kernel_in_header.h:2", "__shared__": "shared_in_header.h:3"}
    place = headers.get(name, "kernel.cu:2")
    explained = host.explain(done.stderr)
    said = [text for text in explained.splitlines() if f"{place}: " in text and "host backend" in text]
    assert said, explained
    words = {"cooperative_groups.h": "no cooperative groups", "mma.h": "no tensor cores",
             "cuda/barrier": "no <cuda/barrier>"}
    wanted = words.get(name, f"`{name.strip()}` is not supported by the host backend: ")
    assert any(wanted in text for text in said), explained


@pytest.mark.parametrize("text, line, words", [
    ("__global__ void a() {}\n__global__ void b() {\n    a<<<1, 1>>>();\n}", 3, "no dynamic parallelism"),
    ("extern __shared__ float s[];\n__global__ void k() { s[0] = 1; }", 1, "declare it inside the kernel"),
    ("\n__shared__ float s[4];\n__global__ void k() { s[0] = 1; }", 2, "declare it inside the kernel"),
    ("__global__ void k() {\n    __shared__ int n = 0;\n}", 2, "has an initializer"),
    ("__global__ void k() {\n\n    __shared__ int n[2]{};\n}", 3, "has an initializer"),
    ("__global__ void k() {\n    extern __shared__ int n;\n}", 2, "T name[]"),
    ("#define KERNEL __global__ void\nKERNEL k() {}", 1, "in full"),
    ("#define TILE __shared__ float t[32]\n__global__ void k() { TILE; }", 1, "in the same macro"),
    ("void f() {\n    k<<<1, 2;\n}", 2, "without `>>>(`"),
    ("__global__ void k() {\n", 1, "never closed"),
])
def test_refused_by_transform(text, line, words):
    with pytest.raises(host.HostBackendError) as refused:
        host.transform(text, "kernel.cu")
    assert str(refused.value).startswith(f"kernel.cu:{line}: ")
    assert words in str(refused.value)


def test_other_errors_come_back_unchanged(tmp_path):
    done, _ = compile_text("\nint f() { return undeclared; }", tmp_path, flags=["-fsyntax-only"])
    assert "kernel.cu:2:" in done.stderr
    assert host.explain(done.stderr) == done.stderr


# ---- the transform ----


def changed(text):
    out = host.transform(text, "a.cu")
    head = '#include "cuda_host.h"\n#line 1 "a.cu"\n'
    assert out.startswith(head)
    assert out.count("\n") == text.count("\n") + 2
    return out[len(head):]


@pytest.mark.parametrize("text", [
    "int x = a << b;", "auto y = a << (b >> 3);", "// k<<<1, 2>>>(x)", "char c = '\"';",
    "/* k<<<1, 2>>>(x) __global__ */ int x;", 'const char* s = "k<<<1, 2>>>(x) // ";',
    'auto s = R"x(k<<<1, 2>>>(x) " __shared__ )y" )x";',
    "Foo<Bar<Baz<int>>> z;", "int n = 1'000'000; // it's", "ostream& operator<<<T>(ostream&, T);",
    "#ifdef __CUDACC__\nk<<<1, 2>>>(x);\n__global__ void k() {\n#endif",
    "#if 0\n__shared__ int x = 0;\n#endif",
    "#ifndef __CUDA_ARCH__\nint x;\n#else\nasm(k<<<1);\n#endif", "#error don't <<< here",
    "#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 800)\n__asm__(1);\n#endif", "#include <a<<<b>",
    "__attribute__((__noinline__)) void f();", "template <int N> __device__ int f() { return N >> 1 << 2; }",
])
def test_left_alone(text):
    assert changed(text) == text


@pytest.mark.parametrize("text, wanted", [
    ("k<<<g, b>>>(x, y);", "(::cuda_host::configure(g, b), k(x, y));"),
    ("k <<< g, b, 0, s >>> (x);", "(::cuda_host::configure(g, b, 0, s), k  (x));"),
    ("k<Mode, Foo<T, 3>><<<f(a, b), dim3{1, 2}>>>();",
     "(::cuda_host::configure(f(a, b), dim3{1, 2}), k<Mode, Foo<T, 3>>());"),
    ("if (a < b) ns::k<(1 > 0)><<<1, n<3>>>>(x);",
     "if (a < b) (::cuda_host::configure(1, n<3>), ns::k<(1 > 0)>(x));"),
    ("else ::k<<<1, 2>>>(f(g(\")\")));", "else (::cuda_host::configure(1, 2), ::k(f(g(\")\"))));"),
    ("table[i]<<<1, 2>>>(x);", "(::cuda_host::configure(1, 2), table[i](x));"),
    ("return (p ? a : b)<<<1, 2>>>(x);", "return (::cuda_host::configure(1, 2), (p ? a : b)(x));"),
    ("F::template k<T><<<1, 2>>>(x);", "(::cuda_host::configure(1, 2), F::template k<T>(x));"),
    ("k<<<a, // grid >>>(\n  b /* c, */>>>(\n x);", "(::cuda_host::configure(a,    b), k\n(\n x));"),
    ("#define RUN(T) \\\n  k<T><<<g, \\\n b>>>(x)\nint y;",
     "#define RUN(T) \\\n  (::cuda_host::configure(g,   b), k<T>\\\n(x))\nint y;"),
])
def test_launches(text, wanted):
    def squeeze(s):
        return [" ".join(part.split()) for part in s.replace("\\\n", "\n").split("\n")]
    assert squeeze(changed(text)) == squeeze(wanted)


def reference(name, declaration):
    return f'auto& {name} = ::cuda_host::shared("{name}", [] {{ struct Shared {{ {declaration} }}; return &Shared::{name}; }});'


@pytest.mark.parametrize("text, wanted", [
    ("extern __shared__ float s[];", "float * const s = (float*)::cuda_host::dynamic_shared(\"s\");"),
    ("extern __shared__ __align__(16) unsigned char s[];",
     "unsigned char * const s = (unsigned char*)::cuda_host::dynamic_shared(\"s\");"),
    ("extern __align__(16) __shared__ T s[][4];",
     "T (*const s)[4] = (T (*)[4])::cuda_host::dynamic_shared(\"s\");"),
    ("extern\n__shared__ int s[];", "int * const s = (int*)::cuda_host::dynamic_shared(\"s\");\n"),
    ("__shared__ float a[2][3], b;", reference("a", "float a[2][3], b;") + reference("b", "float a[2][3], b;")),
    ("static __shared__ Foo<A, B> c[4];", reference("c", "Foo<A, B> c[4];")),
    ("__align__(16) __shared__\nfloat d[4];", reference("d", "__align__(16) float d[4];") + "\n"),
    ("__shared__ struct { int x; } e;", reference("e", "struct { int x; } e;")),
])
def test_shared_declarations(text, wanted):
    body = changed("void f() { " + text + " }")
    assert "".join(body.split(" ")) == "".join(("void f() { " + wanted + " }").split(" "))


@pytest.mark.parametrize("cxx", COMPILERS)
@pytest.mark.parametrize("name, header", [("__half", "cuda_fp16.h"), ("__nv_bfloat16", "cuda_bf16.h"),
                                          ("__half2", "cuda_fp16.h"), ("__nv_bfloat162", "cuda_bf16.h")])
def test_errors_name_16_bit_types_as_cuda_does(tmp_path, name, header, cxx):
    done, _ = compile_text(f"#include <{header}>\nstruct Other {{}} other;\n{name} x = other;", tmp_path,
                           flags=["-fsyntax-only"], cxx=cxx)
    explained = host.explain(done.stderr)
    assert done.returncode != 0 and re.search(rf"kernel.cu:3:.*\b{name}\b", explained) and "cuda_host::Small" not in explained


@pytest.mark.parametrize("cxx", COMPILERS)
def test_a_kernel_that_returns_a_number_is_refused_as_by_nvcc(tmp_path, cxx):
    done, _ = compile_text("__global__ void k(float* y) {\n    if (y) return\n    y[0] = 1;\n}", tmp_path,
                           flags=["-fsyntax-only"], cxx=cxx)
    assert done.returncode != 0 and re.search(r"kernel.cu:[23]:\d+: error", done.stderr)


def test_lines_of_compiler_errors_are_those_of_the_file(tmp_path):
    text = """
template <class T>
__global__ void k(T* x,
                  int n)
{
    extern __shared__
        T s[];
    __shared__ T t[4];
    x[0] = s[0] + t[0] + WRONG_A;
}
void f(float* x) {
    k<float>
        <<<1,
           // threads
           32, 16
        >>>(x,
            3);
    WRONG_B;
}
"""
    done, _ = compile_text(text, tmp_path, flags=["-fsyntax-only"])
    for name in ("WRONG_A", "WRONG_B"):
        number = next(i for i, source in enumerate(text.splitlines(), 1) if name in source)
        assert any(row.startswith(f"kernel.cu:{number}:") and name in row for row in done.stderr.splitlines())
