// What carries messages between pretended devices: gloo, under the rules of NCCL or of gloo on a GPU.
//
// A GPU tensor reaches gloo as the same memory seen from the host. NCCL's way (asynchronous): a call leaves a mark on a
// stream of the wire's own and returns to the host at once; work on one communicator is done in the order it was asked
// for, so a send that nobody receives yet holds up the receive behind it; wait() holds up the stream, not the host.
// gloo's way: wait() holds up the host. Operations that a wire refuses say so.
//
// A rank's communicators, as in ProcessGroupNCCL: one for everything where the group is bound to a device (device_id);
// otherwise one for collectives and batches and one for the messages with each peer. Limits: communicators are not split
// or shared between groups, tags do not count under NCCL, and gloo's own limits on types and shapes remain.
#include "streams.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/extension.h>
#include <torch/csrc/utils/pybind.h>

#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <thread>

namespace pretend {

at::Tensor on_host(const at::Tensor& tensor);

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<Work>;
using Issue = std::function<WorkPtr()>;  // hands a call to gloo

// The memory of a GPU's tensor seen from the host, without keeping the tensor: gloo's threads hold on to what they were
// given for a moment after a call is over, and record_memory would count it.
static at::Tensor borrowed(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

static Tensors flat(const Lists& lists) {
  Tensors all;
  for (auto& tensors : lists) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

// One communicator: a thread that does one thing after another, and the stream on which kernels can wait for it.
class Communicator {
 public:
  explicit Communicator(c10::Device device) : stream(new_stream(device)), inside_(std::make_shared<Inside>()) {
    std::thread([inside = inside_] { work_through(*inside); }).detach();
  }
  // All of `batch` at once, after what was asked for before and after what the current stream waits for.
  // The memory of `tensors` stays until all of it is done; the tensors themselves are for the caller to keep.
  std::shared_ptr<Mark> submit(std::vector<Issue> batch, const Tensors& tensors) {
    auto mark = std::make_shared<Mark>();
    std::vector<void*> memory;
    for (auto& tensor : tensors)
      if (tensor.defined() && tensor.device().type() == kGpu && tensor.storage().mutable_data())
        memory.push_back(tensor.storage().mutable_data());
    for (auto* one : memory) use(one);
    {
      std::lock_guard<std::mutex> held(inside_->mutex);
      inside_->tasks.push_back({std::move(batch), std::move(memory), marks_of(current_stream(stream.device())), mark});
    }
    inside_->changed.notify_one();
    follow(stream, {mark});
    return mark;
  }
  const c10::Stream stream;

 private:
  struct Task {
    std::vector<Issue> batch;
    std::vector<void*> memory;
    Marks after;
    std::shared_ptr<Mark> mark;
  };
  struct Inside {  // outlives the communicator, whose thread may be in a call that never ends
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
  };
  [[noreturn]] static void work_through(Inside& inside) {
    for (;;) {
      std::unique_lock<std::mutex> held(inside.mutex);
      inside.changed.wait(held, [&] { return !inside.tasks.empty(); });
      Task task = std::move(inside.tasks.front());
      inside.tasks.pop_front();
      held.unlock();
      try {
        wait_for(task.after);
        std::vector<WorkPtr> works;
        for (auto& issue : task.batch) works.push_back(issue());
        for (auto& work : works) work->wait();
        task.mark->finish();
      } catch (...) {
        task.mark->finish(std::current_exception());
      }
      for (auto* memory : task.memory) leave(memory);
    }
  }
  std::shared_ptr<Inside> inside_;
};

// A call under way on a communicator. It lets go of what it was given when it is waited for, as ProcessGroupNCCL's does:
// what the host frees from then on, the stream frees later.
struct AsynchronousWork final : Work {
  AsynchronousWork(Communicator& communicator, std::shared_ptr<Mark> under_way, Tensors outputs, Tensors kept,
                   bool holds_up_host)
      : mark(std::move(under_way)), outputs_(std::move(outputs)), kept_(std::move(kept)), holds_up_host_(holds_up_host) {
    auto device = communicator.stream.device();
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector{device});
    // Complete for the host already, on the wire's stream: whoever looks at its value gets a stream that waits.
    auto before = exchange_stream(communicator.stream);
    future_->markCompleted(at::IValue(outputs_));
    exchange_stream(before);
  }
  bool isCompleted() override { return mark->done(); }
  bool isSuccess() const override { return mark->done(); }
  void synchronize() override {
    follow(current_stream(current_device()), {mark});
    kept_.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (holds_up_host_) mark->wait();
    return true;
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  const std::shared_ptr<Mark> mark;

 private:
  const Tensors outputs_;
  Tensors kept_;
  const bool holds_up_host_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// gloo's own work, with the tensors that the caller gave.
struct SynchronousWork final : Work {
  SynchronousWork(WorkPtr inner, Tensors outputs) : inner_(std::move(inner)), outputs_(std::move(outputs)) {}
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner_->wait(timeout); }
  void synchronize() override { inner_->wait(); }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto outputs = outputs_;
    auto inner = inner_->getFuture();  // throws for send and recv, which have none
    return inner->then([outputs](c10::ivalue::Future& done) {
      done.value();  // throws what the call threw
      return at::IValue(outputs);
    }, c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const WorkPtr inner_;
  const Tensors outputs_;
};

class Wire final : public c10d::Backend {
 public:
  Wire(c10::intrusive_ptr<Backend> gloo, std::string name, bool asynchronous, std::set<std::string> refused)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), name_(std::move(name)),
        asynchronous_(asynchronous), refused_(std::move(refused)) {}

  const std::string getBackendName() const override { return name_; }
  bool supportsCoalescing() const override { return asynchronous_; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override { gloo_->monitoredBarrier(options, all); }

  void startCoalescing() override { batching_ = true; }
  WorkPtr endCoalescing() override {
    batching_ = false;
    return submit(std::exchange(batch_, {}), kCollectives, std::exchange(batch_outputs_, {}),
                  std::exchange(batch_kept_, {}), false);
  }

  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return run("broadcast", t, {}, [g = gloo_, h = seen(t), o]() mutable { return g->broadcast(h, o); });
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return run("all_reduce", t, {}, [g = gloo_, h = seen(t), o]() mutable { return g->allreduce(h, o); });
  }
  WorkPtr allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    return run("all_reduce", t, {}, [g = gloo_, h = seen(t), o]() mutable { return g->allreduce_coalesced(h, o); });
  }
  WorkPtr reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return run("reduce", t, {}, [g = gloo_, h = seen(t), o]() mutable { return g->reduce(h, o); });
  }
  WorkPtr allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather", flat(out), in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->allgather(h, i, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather", {out}, {in}, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->_allgather_base(h, i, o); });
  }
  WorkPtr allgather_coalesced(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather", flat(out), in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->allgather_coalesced(h, i, o); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    return run("all_gather", out, in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->allgather_into_tensor_coalesced(h, i, o); });
  }
  WorkPtr gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    return run("gather", flat(out), in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->gather(h, i, o); });
  }
  WorkPtr scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    return run("scatter", out, flat(in), [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->scatter(h, i, o); });
  }
  WorkPtr reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce_scatter", out, flat(in), [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->reduce_scatter(h, i, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce_scatter", {out}, {in}, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->_reduce_scatter_base(h, i, o); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    return run("reduce_scatter", out, in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      return g->reduce_scatter_tensor_coalesced(h, i, o); });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
                        const c10d::AllToAllOptions& o) override {
    return run("all_to_all", {out}, {in}, [g = gloo_, h = seen(out), i = seen(in), out_sizes, in_sizes, o]() mutable {
      return g->alltoall_base(h, i, out_sizes, in_sizes, o); });
  }
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    return run("all_to_all", out, in, [g = gloo_, h = seen(out), i = seen(in), o]() mutable {
      std::vector<int64_t> out_sizes, in_sizes;  // gloo before torch 2.13 has it of one tensor alone
      for (auto& tensor : h) out_sizes.push_back(tensor.numel());
      for (auto& tensor : i) { in_sizes.push_back(tensor.numel()); tensor = tensor.reshape(-1); }
      auto sent = at::cat(i);
      auto came = at::empty({std::accumulate(out_sizes.begin(), out_sizes.end(), int64_t{0})}, sent.options());
      auto parts = came.split_with_sizes(out_sizes);  // before gloo, which empties the sizes
      auto work = g->alltoall_base(came, sent, out_sizes, in_sizes, o);
      work->wait();
      for (size_t k = 0; k < h.size(); ++k) h[k].copy_(parts[k].view_as(h[k]));
      return work; });
  }
  WorkPtr send(Tensors& t, int peer, int tag) override {
    return run("send", t, {}, [g = gloo_, h = seen(t), peer, tag = asynchronous_ ? 0 : tag]() mutable {
      return g->send(h, peer, tag); }, peer);
  }
  WorkPtr recv(Tensors& t, int peer, int tag) override {
    return run("recv", t, {}, [g = gloo_, h = seen(t), peer, tag = asynchronous_ ? 0 : tag]() mutable {
      return g->recv(h, peer, tag); }, peer);
  }
  WorkPtr recvAnysource(Tensors& t, int tag) override {
    return run("recv from any rank", t, {}, [g = gloo_, h = seen(t), tag]() mutable { return g->recvAnysource(h, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    if (!asynchronous_) return gloo_->barrier(c10d::BarrierOptions{});
    auto plain = c10d::BarrierOptions{};  // the device named in `o` means nothing to gloo
    return submit({[g = gloo_, plain] { return g->barrier(plain); }}, kCollectives, {}, {}, true);
  }

 private:
  static constexpr int kCollectives = -1;

  at::Tensor seen(const at::Tensor& tensor) const { return asynchronous_ ? borrowed(tensor) : on_host(tensor); }
  Tensors seen(const Tensors& tensors) const {
    Tensors all;
    for (auto& tensor : tensors) all.push_back(seen(tensor));
    return all;
  }
  Lists seen(const Lists& lists) const {
    Lists all;
    for (auto& tensors : lists) all.push_back(seen(tensors));
    return all;
  }

  WorkPtr run(const std::string& operation, const Tensors& outputs, const Tensors& inputs, Issue issue,
              int peer = kCollectives) {
    bool on_gpu = false, on_cpu = false;
    for (auto* tensors : {&outputs, &inputs})
      for (auto& tensor : *tensors) (tensor.is_cpu() ? on_cpu : on_gpu) = true;
    TORCH_CHECK(!(on_gpu && on_cpu), operation, ": tensors of the CPU and of the GPU in one call");
    TORCH_CHECK(!(on_gpu && refused_.count(operation)), name_, " has no ", operation, " for tensors of a GPU");
    if (!asynchronous_) {
      if (on_gpu) before_kernel();  // gloo copies to the host first
      auto work = issue();
      return on_gpu ? WorkPtr(c10::make_intrusive<SynchronousWork>(work, outputs)) : work;
    }
    int communicator = bound_device_id_ ? kCollectives : peer;
    Tensors kept = outputs;
    kept.insert(kept.end(), inputs.begin(), inputs.end());
    if (!batching_) return submit({std::move(issue)}, communicator, outputs, std::move(kept), false);
    batch_.push_back(std::move(issue));
    batch_kept_.insert(batch_kept_.end(), kept.begin(), kept.end());
    batch_outputs_.insert(batch_outputs_.end(), outputs.begin(), outputs.end());
    return c10::make_intrusive<Work>();  // of no use: the batch has one work
  }

  WorkPtr submit(std::vector<Issue> batch, int communicator, Tensors outputs, Tensors kept, bool holds_up_host) {
    auto found = communicators_.find(communicator);
    if (found == communicators_.end())
      found = communicators_.emplace(communicator, std::make_unique<Communicator>(current_device())).first;
    auto mark = found->second->submit(std::move(batch), kept);
    return c10::make_intrusive<AsynchronousWork>(*found->second, mark, std::move(outputs), std::move(kept), holds_up_host);
  }

  const c10::intrusive_ptr<Backend> gloo_;
  const std::string name_;
  const bool asynchronous_;
  const std::set<std::string> refused_;
  std::map<int, std::unique_ptr<Communicator>> communicators_;
  bool batching_ = false;
  std::vector<Issue> batch_;
  Tensors batch_outputs_, batch_kept_;
};

}  // namespace pretend

namespace c10d {

// torch's DDP asks for its times in its first steps, and warns of devices that have no timer.
class HostTimer final : public Timer {
 public:
  explicit HostTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional(*to - *from) : std::nullopt;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, HostTimer);

}  // namespace c10d

void bind_wire(pybind11::module& m) {
  using pretend::Wire;
  auto base = pybind11::module::import("torch._C._distributed_c10d").attr("Backend");
  pybind11::class_<Wire, c10::intrusive_ptr<Wire>>(m, "Wire", base)
      .def(pybind11::init<c10::intrusive_ptr<c10d::Backend>, std::string, bool, std::set<std::string>>())
      .def_property_readonly("options", &Wire::getBackendOptions);
}
