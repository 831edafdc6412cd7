// torch.ops.NAMESPACE.*: checks, allocation, launch. Gradients and shapes under torch.compile are op.py's.
//
// NAMESPACE is a macro, a name for this very build, so that an edited kernel can be loaded beside the old one.
#include "geometry.h"
#include "torch_op.h"

using torch::stable::Tensor;
using torch_op::Launch;

constexpr int64_t MOST_THREADS = 1024, MOST_BLOCKS = (int64_t(1) << 31) - 1;

static void check_threads(int64_t threads) {
    if (threads < 1 || threads > MOST_THREADS) {
        torch_op::fail({"geometry: `threads` is ", std::to_string(threads), "; a block has 1 to 1024 threads."});
    }
}

// On a device that this build reaches, and a grid holds the blocks that x needs.
static void check_grid(const Tensor& x, int64_t version, int64_t threads) {
    torch_op::check_device("geometry", x, "x");
    check_threads(threads);
    const int64_t a_block = threads * geometry_elements(version);
    if (a_block && x.numel() > MOST_BLOCKS * a_block) {
        torch_op::fail({"geometry: `x` has ", std::to_string(x.numel()), " elements, at ", std::to_string(a_block),
                        " a block more blocks than the 2147483647 that a grid has. Take more threads a block, or more "
                        "elements a thread."});
    }
}

// x: dense, and checked. y: of its layout.
static void launch_into(const Tensor& y, const Tensor& x, int64_t version, int64_t threads) {
    const Element element = torch_op::element_of("geometry", x, "x");
    const Launch launch(x);
    launch.check("geometry", version,
                 geometry_forward(element, version, static_cast<unsigned>(threads), x.data_ptr(), y.data_ptr(), x.numel(),
                                  launch.stream()));
}

// Into an output that the caller made.
static void sweep_out(Tensor x, Tensor y, int64_t version, int64_t threads) {
    check_grid(x, version, threads);
    torch_op::check_layout("geometry", y, "y", x, "x");
    torch_op::check_overlap("geometry", y, "y", x, "x");
    torch_op::mark_dirty("geometry", y, "y");
    launch_into(y, x, version, threads);
}

// Into a new output, from an input of any layout; the result has the layout of torch.empty_like(x).
static Tensor sweep(Tensor x, int64_t version, int64_t threads) {
    check_grid(x, version, threads);
    const Tensor dense = torch_op::dense(x);
    const Tensor y = torch::stable::empty_like(dense);
    launch_into(y, dense, version, threads);
    return y;
}

// With the threads a block that most kernels of this book have.
constexpr int64_t THREADS = 256;

static void forward_out(Tensor x, Tensor y, int64_t version) { sweep_out(x, y, version, THREADS); }

static Tensor forward(Tensor x, int64_t version) { return sweep(x, version, THREADS); }

// Of the kernel that sweep(x, version, threads) launches. x gives the element type and the device, no more.
static std::tuple<int64_t, int64_t, int64_t> occupancy(Tensor x, int64_t version, int64_t threads) {
    torch_op::check_device("geometry", x, "x");
    check_threads(threads);
    const Element element = torch_op::element_of("geometry", x, "x");
    const Launch on_device_of(x);
    Occupancy found{};
    const char* error = geometry_occupancy(element, version, static_cast<unsigned>(threads), found);
    torch_op::check_version("geometry", version, error);
    if (error) torch_op::fail({"geometry: CUDA gave no occupancy: ", error});
    return {found.blocks, found.registers, found.shared_bytes};
}

OP_LIBRARY(NAMESPACE, m) {
    m.def("forward(Tensor x, int version) -> Tensor");
    m.def("forward_out(Tensor x, Tensor(a!) y, int version) -> ()");
    m.def("sweep(Tensor x, int version, int threads) -> Tensor");
    m.def("sweep_out(Tensor x, Tensor(a!) y, int version, int threads) -> ()");
    m.def("occupancy(Tensor x, int version, int threads) -> (int blocks, int registers, int shared_bytes)");
}

// For every device, so that a tensor on the wrong one gets our message and not the dispatcher's.
OP_LIBRARY_IMPL(NAMESPACE, CompositeExplicitAutograd, m) {
    m.impl("forward", OP_BOX(forward));
    m.impl("forward_out", OP_BOX(forward_out));
    m.impl("sweep", OP_BOX(sweep));
    m.impl("sweep_out", OP_BOX(sweep_out));
    m.impl("occupancy", OP_BOX(occupancy));
}
