/// @file c10d's NCCL as a lane, in a library of its own: its headers want CUDA's and NCCL's, its symbols are in
/// libtorch_cuda.so, which is opened before it and only where a recipe names CUDA devices.
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <distributed/lane.hpp>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace trainer::distributed {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

class NcclLane final : public Lane {
 public:
  NcclLane(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks) {
    // Who is late or gone is found by Meeting; c10d's own watch over NCCL would end the process without a word of who.
    ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
    ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
    const auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::hours(24 * 7);
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("trainer/nccl", store),
                                                         rank, ranks, options);
  }
  ~NcclLane() override {
    if (broken_) static_cast<void>(group_.release());  // its threads wait for what never comes
  }
  void gather(at::Tensor& all, at::Tensor& own, const std::function<void()>& waiting) override {
    finish(group_->_allgather_base(all, own), waiting);
  }
  void swap(at::Tensor& out, at::Tensor& in, const std::function<void()>& waiting) override {
    std::vector<int64_t> even;
    finish(group_->alltoall_base(out, in, even, even), waiting);
  }

 private:
  void finish(const Work& work, const std::function<void()>& waiting) {
    try {
      for (int spins = 0; !work->isCompleted(); ++spins) {
        if (spins % 64 == 0) waiting();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      if (const std::exception_ptr problem = work->exception()) std::rethrow_exception(problem);
      work->wait();  // the current stream may read what came
    } catch (...) {
      broken_ = true;
      throw;
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  bool broken_ = false;
};

}  // namespace
}  // namespace trainer::distributed

extern "C" __attribute__((visibility("default"))) trainer::distributed::Lane* trainer_nccl_lane(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks) {
  return new trainer::distributed::NcclLane(store, rank, ranks);
}
