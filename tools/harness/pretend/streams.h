// When what was asked of the pretended device is done: marks, and the streams and events that wait for them.
//
// Arithmetic is done by the time a call returns. What takes time is communication (wire.cpp): each call there leaves a
// mark, and a stream holds the marks that its next kernel has to wait for. So the host runs ahead of communication, as
// it does with NCCL, and every number is right as soon as a kernel or a copy looks at it.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace pretend {

constexpr auto kGpu = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 16;

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One piece of communication: under way until finish().
class Mark {
 public:
  void finish(std::exception_ptr error = nullptr) {
    {
      std::lock_guard<std::mutex> held(mutex_);
      done_ = true, error_ = error, at_s_ = now_s();
    }
    changed_.notify_all();
  }
  bool done() {
    std::lock_guard<std::mutex> held(mutex_);
    return done_;
  }
  void wait() {  // throws what the communication threw
    std::unique_lock<std::mutex> held(mutex_);
    changed_.wait(held, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  double at_s() {
    std::lock_guard<std::mutex> held(mutex_);
    return at_s_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  double at_s_ = 0;
};
using Marks = std::vector<std::shared_ptr<Mark>>;

struct Event {
  Marks marks;
  double recorded_s;
};

int num_devices();
c10::Device current_device();
c10::Stream current_stream(c10::Device device);
c10::Stream new_stream(c10::Device device);
c10::Stream exchange_stream(c10::Stream stream);
Marks marks_of(c10::Stream stream);                           // those not yet done
void follow(c10::Stream stream, const Marks& marks);          // the stream's next kernel waits for them
void wait_for(const Marks& marks);                            // the calling thread waits
void use(void* memory);                                       // stays although it is released, as what a stream is at
void leave(void* memory);                                     // work on stays with CUDA's allocator, until it is left
void before_kernel();                                         // the calling thread is the current stream: it waits

}  // namespace pretend
