// What every binding.cpp needs from PyTorch, on the stable ABI alone: those headers compile in a second,
// and a library built on them runs on any later torch. Works with torch 2.9 and newer.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "element.h"

#ifdef USE_CUDA
// The shim's header declares this for a build that knows CUDA; torch 2.9 does so under another macro.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);
#endif

namespace torch_op {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The parts of a message, as texts: a template on their types would cost compile time in every binding.
[[noreturn]] inline void fail(std::initializer_list<std::string_view> parts) {
    std::string text;
    for (std::string_view part : parts) text += part;
    throw std::runtime_error(text);
}

inline std::string shape_of(const Tensor& t) {
    std::string text = "[";
    for (int64_t d = 0; d < t.dim(); ++d) text += (d ? ", " : "") + std::to_string(t.size(d));
    return text + "]";
}

// torch's number of the dtype. Every tensor has one; Tensor::scalar_type() fails at a type that the stable ABI does not know.
inline int32_t dtype_number(const Tensor& t) {
    int32_t number = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &number));
    return number;
}

inline const char* dtype_of(const Tensor& t) {
    const std::pair<int32_t, const char*> names[] = {
        {aoti_torch_dtype_float16(), "float16"},     {aoti_torch_dtype_bfloat16(), "bfloat16"},
        {aoti_torch_dtype_float32(), "float32"},     {aoti_torch_dtype_float64(), "float64"},
        {aoti_torch_dtype_bool(), "bool"},           {aoti_torch_dtype_int8(), "int8"},
        {aoti_torch_dtype_int16(), "int16"},         {aoti_torch_dtype_int32(), "int32"},
        {aoti_torch_dtype_int64(), "int64"},         {aoti_torch_dtype_uint8(), "uint8"},
        {aoti_torch_dtype_uint16(), "uint16"},       {aoti_torch_dtype_uint32(), "uint32"},
        {aoti_torch_dtype_uint64(), "uint64"},       {aoti_torch_dtype_complex32(), "complex32"},
        {aoti_torch_dtype_complex64(), "complex64"}, {aoti_torch_dtype_complex128(), "complex128"},
        {aoti_torch_dtype_float8_e5m2(), "float8_e5m2"},         {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn"},
        {aoti_torch_dtype_float8_e5m2fnuz(), "float8_e5m2fnuz"}, {aoti_torch_dtype_float8_e4m3fnuz(), "float8_e4m3fnuz"}};
    for (const auto& [number, name] : names) {
        if (number == dtype_number(t)) return name;
    }
    return "another type";
}

// The element type of `t`, an argument called `name` of the operator `op`.
inline Element element_of(std::string_view op, const Tensor& t, const char* name) {
    const int32_t number = dtype_number(t);
    if (number == aoti_torch_dtype_float16()) return Element::half;
    if (number == aoti_torch_dtype_bfloat16()) return Element::bfloat16;
    if (number == aoti_torch_dtype_float32()) return Element::float32;
    if (number == aoti_torch_dtype_float64()) return Element::float64;
    fail({op, ": `", name, "` is ", dtype_of(t), "; ", op,
          " takes float16, bfloat16, float32 and float64. Convert it with .to(dtype)."});
}

// `t`, an argument called `name` of the operator `op`, is a tensor that this build can reach, with strides, of a type that it
// takes. This comes before any other question: None arrives as a tensor that has no device, and answers few of them.
inline void check_device(const char* op, const Tensor& t, const char* name) {
    if (!t.defined()) fail({op, ": `", name, "` is None. Pass a tensor."});
    int32_t layout = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(t.get(), &layout));
    if (layout != aoti_torch_layout_strided()) {
        fail({op, ": `", name, "` is not strided (sparse, or of another layout). Pass ", name, ".to_dense()."});
    }
#ifdef USE_CUDA
    if (!t.is_cuda()) {
        fail({op, ": `", name, "` is ", t.is_cpu() ? "on the CPU" : "not on a CUDA device",
             ", and this build runs on CUDA. Pass ", name, ".cuda()."});
    }
#else
    if (!t.is_cpu()) {
        fail({op, ": `", name, "` is not on the CPU, and this build (the host backend) runs there. Pass ", name,
             ".cpu(), or load the operator on a machine with a GPU and nvcc."});
    }
#endif
    element_of(op, t, name);
}

// `t` goes with `first`: same device, same dtype, same shape.
inline void check_matches(const char* op, const Tensor& t, const char* name, const Tensor& first,
                          const char* first_name) {
    check_device(op, t, name);
    if (t.get_device_index() != first.get_device_index()) {
        fail({op, ": `", name, "` is on device ", std::to_string(t.get_device_index()), " and `", first_name, "` on device ",
             std::to_string(first.get_device_index()), ". Move one to the other's device."});
    }
    if (dtype_number(t) != dtype_number(first)) {
        fail({op, ": `", name, "` is ", dtype_of(t), " and `", first_name, "` is ", dtype_of(first),
             ". Convert one with .to(dtype)."});
    }
    if (shape_of(t) != shape_of(first)) {
        fail({op, ": `", name, "` has shape ", shape_of(t), " and `", first_name, "` ", shape_of(first),
             ". They must be equal; nothing is broadcast here."});
    }
}

// Every element of the memory from the first to the last belongs to `t`, once: then an elementwise kernel
// may walk it as a flat array, whatever the order of the dimensions.
inline bool is_dense(const Tensor& t) {
    const int64_t n = t.numel();
    // From the innermost dimension outwards: the next one is that whose stride is the size of all inside it.
    for (int64_t inside = 1; inside < n;) {
        int64_t size = 0;
        for (int64_t d = 0; d < t.dim(); ++d) {
            if (t.size(d) > 1 && t.stride(d) == inside) size = t.size(d);
        }
        if (size == 0) return false;
        inside *= size;
    }
    return true;
}

inline bool same_order(const Tensor& a, const Tensor& b) {
    for (int64_t d = 0; d < a.dim(); ++d) {
        if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
    }
    return true;
}

inline Tensor copy_in_order_of(const Tensor& like, const Tensor& t) {
    const Tensor copy = torch::stable::empty_like(like);
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy.get(), t.get(), /*non_blocking=*/false));
    return copy;
}

// `t` itself where it is dense and its elements lie in the order of `like` (dense); else a copy that does.
inline Tensor in_order_of(const Tensor& like, const Tensor& t) {
    if (is_dense(t) && same_order(t, like)) return t;
    return copy_in_order_of(like, t);
}

// `t` itself where it is dense, else a dense copy.
inline Tensor dense(const Tensor& t) {
    if (is_dense(t)) return t;
    return copy_in_order_of(t, t);
}

inline size_t bytes_of(const Tensor& t) { return t.numel() * aoti_torch_dtype_element_size(dtype_number(t)); }

// Do two dense tensors share memory? One that is the other's very memory does not count when `same_is_fine`: an elementwise
// kernel may run in place.
inline bool overlap(const Tensor& a, const Tensor& b, bool same_is_fine) {
    if (a.data_ptr() == b.data_ptr()) return !same_is_fine && a.numel() > 0;
    const char* a_begin = static_cast<const char*>(a.data_ptr());
    const char* b_begin = static_cast<const char*>(b.data_ptr());
    return a_begin < b_begin + bytes_of(b) && b_begin < a_begin + bytes_of(a);
}

// A further argument that goes with `like` element by element in memory, such as a preallocated output: it must have
// the very layout of `like`, since it cannot be replaced by a copy.
inline void check_layout(const char* op, const Tensor& t, const char* name, const Tensor& like, const char* like_name) {
    check_matches(op, t, name, like, like_name);
    if (!is_dense(t) || !same_order(t, like)) {
        fail({op, ": `", name, "` must be dense, with the strides of `", like_name, "`. Make it with torch.empty_like(",
              like_name, ")."});
    }
}

// `out` is written: it may be the memory of an input, and else must not touch it; two outputs share nothing.
inline void check_overlap(const char* op, const Tensor& out, const char* name, const Tensor& other,
                          const char* other_name, bool other_is_output = false) {
    if (overlap(out, other, !other_is_output)) {
        fail({op, ": `", name, "` shares memory with `", other_name, "`. Pass a tensor of its own, made with ",
              "torch.empty_like(", other_name, ")."});
    }
}

// Elements in order without gaps; the stride of a dimension of size 1 is never used.
inline bool is_contiguous(const Tensor& t) {
    int64_t inside = 1;
    for (int64_t d = t.dim() - 1; d >= 0; --d) {
        if (t.size(d) != 1 && t.stride(d) != inside) return t.numel() == 0;
        inside *= t.size(d);
    }
    return true;
}

// A contiguous matrix; returns its element type.
inline Element check_matrix(const std::string& op, const Tensor& x, const char* name) {
    check_device(op.c_str(), x, name);
    if (x.dim() != 2) {
        fail({op, ": `", name, "` has shape ", shape_of(x), "; ", op,
              " takes two dimensions. Reshape it with .reshape(rows, cols)."});
    }
    if (!is_contiguous(x)) fail({op, ": `", name, "` is not contiguous. Pass ", name, ".contiguous()."});
    return element_of(op, x, name);
}

// An output of another shape than `x`, or one that must not be `x` itself, since a thread reads what another may have
// written over: contiguous, of x's dtype and of shape `sizes`, in memory of its own.
inline void check_result(const std::string& op, const Tensor& y, const char* name, const Tensor& x, const char* x_name,
                         std::initializer_list<int64_t> sizes) {
    check_device(op.c_str(), y, name);
    std::string list;
    for (int64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
    const std::string shape = "[" + list + "]", make = std::string(x_name) + ".new_empty(" + list + ")";
    if (y.get_device_index() != x.get_device_index() || dtype_number(y) != dtype_number(x) || shape_of(y) != shape ||
        !is_contiguous(y)) {
        fail({op, ": `", name, "` must be contiguous, ", dtype_of(x), " of shape ", shape, ", on the device of `", x_name,
              "`; it is ", dtype_of(y), " of shape ", shape_of(y), ". Make it with ", make, "."});
    }
    if (overlap(y, x, /*same_is_fine=*/false)) {
        fail({op, ": `", name, "` shares memory with `", x_name, "`. Pass a tensor of its own, made with ", make, "."});
    }
}

// Tells autograd that `out`, which the caller made, is about to be overwritten: a graph that has saved it must notice, and its
// own history ends here. torch knows that of its own in-place operators alone, so this calls one: a copy from a second tensor
// on the very memory of `out`, without its history. torch sees that both are one and copies nothing.
inline void mark_dirty(const char* op, const Tensor& out, const char* name) {
    int64_t *sizes = nullptr, *strides = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(out.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(out.get(), &strides));
    AtenTensorHandle detached = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch__reinterpret_tensor(out.get(), out.dim(), sizes, strides, /*storage_offset=*/0, &detached));
    const Tensor owner(detached);
    if (aoti_torch_copy_(out.get(), detached, /*non_blocking=*/false) != AOTI_TORCH_SUCCESS) {
        fail({op, ": `", name, "` must not be overwritten: it is a leaf that requires a gradient, or a view that autograd ",
              "cannot follow, or was made in inference mode. Pass a new tensor, made with torch.empty_like(", name, ")."});
    }
}

// What a launcher returned is not that the build holds no such version.
inline void check_version(const char* op, int64_t version, const char* error) {
    if (error && std::string_view(error).starts_with("no such version")) {
        fail({op, ": `version` is ", std::to_string(version), "; there is ", error, "."});
    }
}

// Makes the tensor's device the current one for as long as it lives, and holds torch's current stream there.
class __attribute__((visibility("hidden"))) Launch {
public:
#ifdef USE_CUDA
    explicit Launch(const Tensor& t) : guard_(t.get_device_index()) {
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream_));
    }
#else
    explicit Launch(const Tensor&) {}
#endif
    void* stream() const { return stream_; }

    // `error` is what a launcher returned: nullptr, or what went wrong.
    static void check(const char* op, const char* error) {
        if (!error) return;
        if (std::string_view(error).starts_with("no kernel image")) {
            fail({op, ": the launch failed: ", error,
                  ". The library holds no code for this GPU. Build it here, or for this GPU (TORCH_CUDA_ARCH_LIST)."});
        }
        fail({op, ": the launch, or a kernel before it, failed: ", error, ". CUDA_LAUNCH_BLOCKING=1 shows which."});
    }
    static void check(const char* op, int64_t version, const char* error) {
        check_version(op, version, error);
        check(op, error);
    }

private:
#ifdef USE_CUDA
    torch::stable::accelerator::DeviceGuard guard_;
#endif
    void* stream_ = nullptr;
};

}  // namespace torch_op

// torch 2.9 turns the namespace into a text without expanding it; one macro more in between expands NAMESPACE first.
#define OP_LIBRARY(ns, m) STABLE_TORCH_LIBRARY(ns, m)
#define OP_LIBRARY_IMPL(ns, key, m) STABLE_TORCH_LIBRARY_IMPL(ns, key, m)

// torch 2.9 has no TORCH_BOX; from 2.10 on it turns a function on tensors and numbers into what the
// dispatcher calls. This is the same for the argument and result types that this book uses.
#ifdef TORCH_BOX
#define OP_BOX(function) TORCH_BOX(&function)
#else
namespace torch_op {
template <class Result, class... Args, size_t... I>
void call_boxed(Result (*function)(Args...), StableIValue* stack, std::index_sequence<I...>) {
    auto args = std::make_tuple(to<std::decay_t<Args>>(stack[I])...);
    if constexpr (std::is_void_v<Result>) {
        std::apply(function, args);
    } else if constexpr (std::is_same_v<Result, Tensor>) {
        stack[0] = from(std::apply(function, args));
    } else {
        std::apply([&](const auto&... results) { ((*stack++ = from(results)), ...); }, std::apply(function, args));
    }
}
template <class Result, class... Args>
void call_boxed(Result (*function)(Args...), StableIValue* stack) {
    call_boxed(function, stack, std::index_sequence_for<Args...>());
}
}  // namespace torch_op
#define OP_BOX(function) +[](StableIValue* stack, uint64_t, uint64_t) { torch_op::call_boxed(&function, stack); }
#endif
