// A GPU that is the host's memory under another device type (PrivateUse1), with what makes a program fail on a GPU:
// tensors of two devices do not mix, a CPU generator draws nothing here, and streams run beside the host (streams.h).
//
// Every operator falls back to the CPU's, so numbers are the CPU's up to rounding (torch puts some operators together
// from others here). Random numbers are not: the device has a generator of its own. Limits: no reserve of freed
// memory, no pinned memory of its own, no kernels that are still running when a call returns, no conjugates of complex
// tensors.
#include "streams.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <array>
#include <atomic>
#include <map>
#include <unordered_map>

void bind_wire(pybind11::module& m);

namespace pretend {

// Devices and streams

static std::atomic<int> device_count{1};
static std::atomic<int> last_stream{0};
static thread_local c10::DeviceIndex current = 0;
static thread_local std::array<c10::StreamId, kMostDevices> stream_ids{};
static std::mutex streams_mutex;
static std::map<std::pair<int, c10::StreamId>, Marks> streams;

int num_devices() { return device_count; }
c10::Device current_device() { return {kGpu, current}; }

static c10::Device with_index(c10::Device device) { return device.has_index() ? device : current_device(); }

static c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count, "gpu:", int(index), " asked for, and there are ", int(device_count));
  return std::exchange(current, index);
}

c10::Stream current_stream(c10::Device device) {
  device = with_index(device);
  return c10::Stream(c10::Stream::UNSAFE, device, stream_ids[device.index()]);
}

c10::Stream new_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, with_index(device), ++last_stream);
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto before = current_stream(stream.device());
  stream_ids[stream.device_index()] = stream.id();
  return before;
}

static Marks pending(Marks& marks) {
  marks.erase(std::remove_if(marks.begin(), marks.end(), [](auto& mark) { return mark->done(); }), marks.end());
  return marks;
}

Marks marks_of(c10::Stream stream) {
  std::lock_guard<std::mutex> held(streams_mutex);
  auto found = streams.find({stream.device_index(), stream.id()});
  return found == streams.end() ? Marks{} : pending(found->second);
}

void follow(c10::Stream stream, const Marks& marks) {
  std::lock_guard<std::mutex> held(streams_mutex);
  auto& own = streams[{stream.device_index(), stream.id()}];
  pending(own);
  own.insert(own.end(), marks.begin(), marks.end());
}

void wait_for(const Marks& marks) {
  for (auto& mark : marks) mark->wait();
}

void before_kernel() { wait_for(marks_of(current_stream(current_device()))); }

static void synchronize(c10::DeviceIndex device) {
  Marks all;
  {
    std::lock_guard<std::mutex> held(streams_mutex);
    for (auto& [key, marks] : streams)
      if (key.first == device)
        for (auto& mark : pending(marks)) all.push_back(mark);
  }
  wait_for(all);
}

static double time_of(void* event) {
  double at_s = static_cast<Event*>(event)->recorded_s;
  for (auto& mark : static_cast<Event*>(event)->marks) at_s = std::max(at_s, mark->at_s());
  return at_s;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device d) const override { return {kGpu, exchange_device(with_index(d).index())}; }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device d) const override { exchange_device(with_index(d).index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = with_index(d).index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }
  c10::Stream getStream(c10::Device d) const override { return current_stream(d); }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(d));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return new_stream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return new_stream(d); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override { return marks_of(stream).empty(); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(marks_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize(index < 0 ? current : index); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {marks_of(stream), now_s()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) follow(stream, static_cast<Event*>(event)->marks);
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    auto& marks = static_cast<Event*>(event)->marks;  // kept, for the time at which they are done
    return std::all_of(marks.begin(), marks.end(), [](auto& mark) { return mark->done(); });
  }
  void synchronizeEvent(void* event) const override {
    if (event) wait_for(static_cast<Event*>(event)->marks);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return (time_of(end) - time_of(start)) * 1e3;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory

struct HostMemory final : c10::Allocator {
  struct Statistics {
    std::atomic<int64_t> allocated, peak;
  };
  struct alignas(64) Header {  // before what is given out
    Statistics* of;
    int64_t num_bytes;
    std::atomic<int> users;  // whoever allocated it, and communication under way
  };
  static inline std::array<Statistics, kMostDevices> statistics;

  static Header* header_of(void* memory) { return static_cast<Header*>(memory) - 1; }
  static void leave(void* memory) {
    if (--header_of(memory)->users == 0) free(header_of(memory));
  }
  static void release(void* memory) {
    if (!memory) return;
    header_of(memory)->of->allocated -= header_of(memory)->num_bytes;
    leave(memory);
  }
  c10::DataPtr allocate(size_t num_bytes) override {
    if (!num_bytes) return {nullptr, nullptr, &release, current_device()};
    auto rounded = int64_t(num_bytes + 511) / 512 * 512;  // as CUDA's allocator does
    auto* header = static_cast<Header*>(aligned_alloc(alignof(Header), sizeof(Header) + rounded));
    new (header) Header{&statistics[current], rounded, 1};
    int64_t now = header->of->allocated += rounded, peak = header->of->peak;
    while (peak < now && !header->of->peak.compare_exchange_weak(peak, now)) {}
    return {header + 1, header + 1, &release, current_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { memcpy(to, from, num_bytes); }
} memory;
REGISTER_ALLOCATOR(kGpu, &memory);

void use(void* memory) { ++HostMemory::header_of(memory)->users; }
void leave(void* memory) { HostMemory::leave(memory); }

// The CPU's algorithm under the device's name: a generator of the CPU is none of the device's, and the other way round.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(at::Generator algorithm, c10::DeviceIndex index)
      : c10::GeneratorImpl({kGpu, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(algorithm)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed + different); }
  uint64_t current_seed() const override { return host.current_seed() - different; }
  uint64_t seed() override { return host.seed() - different; }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "the pretended device's generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "the pretended device's generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override {
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(host.clone(), device().index()); }

  static constexpr uint64_t different = 1000;  // the same seed gives other numbers than on the CPU, as on a GPU
  at::Generator host;
};

static at::Generator make_generator(c10::DeviceIndex index) {
  auto made = at::make_generator<Generator>(at::make_generator<at::CPUGeneratorImpl>(), index < 0 ? current : index);
  made.set_current_seed(c10::default_rng_seed_val);
  return made;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count > 0; }
  c10::DeviceIndex deviceCount() const override { return device_count; }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::Device getDeviceFromPtr(void*) const override { return current_device(); }
  // Memory that is asked for as pinned is ordinary, and says so: a copy from it is the same copy.
  bool isPinnedPtr(const void*) const override { return false; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::array<at::Generator, kMostDevices> generators;
    auto& own = generators[index < 0 ? current : index];
    if (!own.defined()) own = make_generator(index < 0 ? current : index);
    return own;
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return make_generator(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t num_bytes) const override {
    auto larger = memory.allocate(num_bytes);
    if (auto kept = std::min(num_bytes, storage.nbytes())) memcpy(larger.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(num_bytes);
  }
};
static Hooks* hooks = new Hooks;  // torch keeps it for ever

// The same memory as a tensor of the CPU; a tensor of the CPU as it is.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .deleter([tensor](void*) {})
      .options(options)
      .allocator(c10::GetAllocator(c10::kCPU))  // an operator with out= may ask for more
      .resizeable_storage()
      .make_tensor();
}

// What has to be more than the CPU's operator: making, copying, reading and reshaping

static c10::Device chosen(std::optional<c10::Device> device) { return with_index(device.value_or(current_device())); }

static at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(chosen(device));
  auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &memory, keys, c10::dtype_or_default(dtype), format);
}

static at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(chosen(device));
  auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &memory, keys, c10::dtype_or_default(dtype));
}

static at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  before_kernel();
  at::AutoDispatchBelowAutograd guard;
  on_host(to).copy_(on_host(from));
  return to;
}

static at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

static at::Scalar local_scalar(const at::Tensor& tensor) {
  before_kernel();
  return on_host(tensor).item();
}

static const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef new_sizes, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(new_sizes);
  if (tensor.sizes() == sizes) return tensor;
  size_t num_bytes = (tensor.storage_offset() + c10::multiply_integers(sizes)) * tensor.itemsize();
  if (tensor.storage().nbytes() < num_bytes) hooks->resizePrivateUse1Bytes(tensor.storage(), num_bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

static at::Tensor& set_storage(at::Tensor& tensor, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                               c10::SymIntArrayRef strides) {
  auto* inside = tensor.unsafeGetTensorImpl();
  inside->set_storage_keep_dtype(std::move(storage));
  inside->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides), offset.expect_int());
  return tensor;
}

static at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage) {
  int64_t size = storage.nbytes() / tensor.itemsize();
  return set_storage(tensor, std::move(storage), 0, {size}, {1});
}

static at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  return set_storage(tensor, other.storage(), other.sym_storage_offset(), other.sym_sizes(), other.sym_strides());
}

static at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                             std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

// Its own since the operator's general form would resize what it returns, and say so.
static at::Tensor mse_loss(const at::Tensor& inputs, const at::Tensor& targets, int64_t reduction) {
  TORCH_CHECK(inputs.device() == targets.device(), "Expected all tensors to be on the same device, but found at least two "
              "devices, ", inputs.device(), " and ", targets.device(), "! (aten::mse_loss)");
  before_kernel();
  return at::mse_loss(on_host(inputs), on_host(targets), reduction).to(inputs.device());
}

// Everything else: the CPU's operator, once the arguments are what a GPU's would take

// What has to be known of an operator at each of its calls, found out at the first.
struct Known {
  explicit Known(const c10::FunctionSchema& schema) {
    const auto& name = schema.name();
    // A GPU takes indices from the CPU, and optimisers keep their step counts there.
    takes_both = name.rfind("aten::index", 0) == 0 && name.rfind("aten::index_", 0) != 0;
    takes_both |= name.rfind("aten::_index_put", 0) == 0 || name.rfind("aten::index_put", 0) == 0;
    takes_both |= name.find("foreach") != std::string::npos || name.find("_fused") != std::string::npos;
    const auto& arguments = schema.arguments();
    for (size_t n = 0; n < arguments.size(); ++n) {
      if (arguments[n].type()->str().find("Generator") != std::string::npos) generators.push_back(n);
      if (!arguments[n].is_out()) continue;
      outs.push_back(n);
      copies |= arguments[n].type()->kind() != c10::TypeKind::TensorType;  // out= is a list
    }
    for (const auto& returned : schema.returns()) {
      const auto* alias = returned.alias_info();
      auto same = std::find_if(arguments.begin(), arguments.end(), [&](const auto& argument) {
        return alias && argument.alias_info() && *argument.alias_info() == *alias;
      });
      written.push_back(alias && alias->isWrite() && same != arguments.end() ? same - arguments.begin() : -1);
      copies |= alias && written.back() < 0;  // it may return a view
    }
  }
  bool takes_both = false, copies = false;  // copies: what torch's own fallback does is safer here
  std::vector<size_t> generators, outs;  // arguments
  std::vector<int> written;  // by what is returned: the argument that it is, or -1
};

static const Known& known(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, Known> all;
  return all.try_emplace(&op.schema(), op.schema()).first->second;
}

using Arguments = c10::ArrayRef<c10::IValue>;

static void refuse_what_cuda_refuses(const c10::OperatorHandle& op, const Known& of, Arguments arguments) {
  std::optional<c10::Device> first;
  auto look = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.is_cpu() && (tensor.dim() == 0 || of.takes_both))) return;
    if (!first) first = tensor.device();
    TORCH_CHECK(*first == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                *first, " and ", tensor.device(), "! (", op.schema().name(), ")");
  };
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      look(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) look(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) if (tensor) look(*tensor);
    }
  }
}

// Generators in the arguments become the CPU's that they stand for; one left out is the device's own.
static void draw_from_the_device(const c10::OperatorHandle& op, const Known& of, torch::jit::Stack& stack) {
  if (of.generators.empty()) return;
  auto values = torch::jit::last(stack, op.schema().arguments().size());
  bool all_on_cpu = std::all_of(values.begin(), values.end(), [](const auto& value) {
    return !value.isTensor() || !value.toTensor().defined() || value.toTensor().is_cpu();
  });
  for (size_t n : of.generators) {
    auto& value = stack[stack.size() - op.schema().arguments().size() + n];
    auto given = value.isNone() ? hooks->getDefaultGenerator(-1) : value.toGenerator();
    const char* expected = all_on_cpu ? "cpu" : "gpu";
    TORCH_CHECK(given.device().type() == kGpu && !all_on_cpu, "Expected a '", expected, "' device type for generator but found '",
                given.device().type() == kGpu ? "gpu" : "cpu", "' (", op.schema().name(), ")");
    value = static_cast<Generator*>(given.unsafeGetGeneratorImpl())->host;
  }
}

static at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return tensor;
  if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg()) return tensor.to(device);
  auto made = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, device, {});
  if (tensor.numel()) memcpy(made.data_ptr(), tensor.data_ptr(), tensor.nbytes());
  return made;
}

// at::native::cpu_fallback for most operators, in half the time: the CPU's operator reads and writes the same memory.
static void call_on_host(const c10::OperatorHandle& op, const Known& of, torch::jit::Stack* stack) {
  size_t num_arguments = op.schema().arguments().size(), begin = stack->size() - num_arguments;
  std::vector<c10::IValue> given(stack->begin() + begin, stack->end());
  auto device = current_device();
  auto host = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !tensor.is_cpu()) device = tensor.device();
    return on_host(tensor);
  };
  for (size_t n = 0; n < num_arguments; ++n) {
    auto& value = (*stack)[begin + n];
    if (value.isTensor()) {
      value = host(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : given[n].toTensorList()) tensors.push_back(host(tensor));
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : given[n].toOptionalTensorList())
        tensors.push_back(tensor ? std::optional<at::Tensor>(host(*tensor)) : std::nullopt);
      value = std::move(tensors);
    } else if (value.isDevice()) {
      device = with_index(value.toDevice());
      value = c10::Device(c10::kCPU);
    }
  }
  std::vector<c10::IValue> outs;
  for (size_t n : of.outs) outs.push_back((*stack)[begin + n]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t n = 0; n < outs.size(); ++n) {
    const auto &found = outs[n].toTensor(), &asked = given[of.outs[n]].toTensor();
    if (!found.sizes().equals(asked.sizes())) copy_from_and_resize(found, asked);
  }
  for (size_t n = 0; n < of.written.size(); ++n) {
    auto& value = (*stack)[stack->size() - of.written.size() + n];
    if (of.written[n] >= 0) {
      value = given[of.written[n]];
    } else if (value.isTensor()) {
      value = on_device(value.toTensor(), device);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(on_device(tensor, device));
      value = std::move(tensors);
    }
  }
}

static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& of = known(op);
  refuse_what_cuda_refuses(op, of, torch::jit::last(*stack, op.schema().arguments().size()));
  draw_from_the_device(op, of, *stack);
  before_kernel();
  if (of.copies) return at::native::cpu_fallback(op, stack);
  call_on_host(op, of, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("as_strided", as_strided);
  m.impl("mse_loss", mse_loss);
  m.impl("view", [](const at::Tensor& t, at::IntArrayRef sizes) { return at::native::view(t, sizes); });
  m.impl("unfold", [](const at::Tensor& t, int64_t dim, int64_t size, int64_t step) {
    return at::native::unfold(t, dim, size, step);
  });
  m.impl("_reshape_alias", [](const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return at::native::_reshape_alias(t, sizes, strides);
  });
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace pretend

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace pretend;
  at::RegisterPrivateUse1HooksInterface(hooks);
  m.def("set_device_count", [](int count) {
    TORCH_CHECK(count >= 1 && count <= kMostDevices, "1 to ", kMostDevices, " devices can be pretended, not ", count);
    device_count = count;
  });
  m.def("device_count", &num_devices);
  m.def("set_device", [](int index) { exchange_device(index); });
  m.def("current_device", [] { return int(current); });
  m.def("synchronize", [] { synchronize(current); }, pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("max_memory_allocated", [](int index) { return HostMemory::statistics.at(index).peak.load(); });
  m.def("reset_peak_memory_stats", [](int index) {
    auto& statistics = HostMemory::statistics.at(index);
    statistics.peak = statistics.allocated.load();
  });
  m.def("default_generator", [](int index) { return hooks->getDefaultGenerator(index); });
  m.def("on_host", &on_host);
  bind_wire(m);
}
