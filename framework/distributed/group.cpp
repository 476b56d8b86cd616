#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <base/device_error.hpp>
#include <base/hash.hpp>
#include <distributed/buckets.hpp>
#include <distributed/exchange.hpp>
#include <distributed/group.hpp>
#include <distributed/meeting.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <sstream>

namespace trainer::distributed {
namespace {

Error with_advice(ExitCode code, const std::string& what) { return {code, what + advice_for(code)}; }

}  // namespace

Group::Group() = default;

Group::Group(const Place& place, std::chrono::milliseconds timeout) : place_(place) {
  if (place.alone()) return;
  meeting_ = std::make_unique<Meeting>(place, timeout);
  try {
    exchange_ = std::make_unique<Exchange>(place, *meeting_, timeout);
  } catch (const Error& error) {
    meeting_->fail(error);
    throw error.context("rank " + std::to_string(place.rank));
  }
}

Group::~Group() = default;
Group::Group(Group&&) noexcept = default;

Group& Group::alone() {
  static Group group;
  return group;
}

void Group::progress(const std::string& doing) {
  if (meeting_) meeting_->progress(doing);
}

LongWork::LongWork(Group& group, const std::string& doing, When when)
    : group_(group), listener_([&group, when] {
        if (!group.meeting_) return;
        group.meeting_->progress();
        if (when == When::all_live) group.meeting_->check();
      }) {
  group_.progress(doing);
}

LongWork::~LongWork() {
  if (group_.meeting_) group_.meeting_->progress();
}

void Group::check() const {
  if (meeting_) meeting_->check();
}

std::string Group::describe() const {
  return place_.alone() ? "one process" : std::to_string(place_.size) + " ranks of " + place_.launcher;
}

void Group::barrier() { first(0); }

std::vector<std::string> Group::texts(const std::string& own) {
  if (!exchange_) return {own};
  const at::Tensor sizes = exchange_->gather(at::scalar_tensor(static_cast<int64_t>(own.size()), at::kLong).view({1}));
  const at::Tensor padded = at::zeros({std::max<int64_t>(sizes.max().item<int64_t>(), 1)}, at::kByte);
  if (!own.empty()) std::memcpy(padded.data_ptr(), own.data(), own.size());
  const at::Tensor all = exchange_->gather(padded);
  std::vector<std::string> texts;
  for (int rank = 0; rank < place_.size; ++rank)
    texts.emplace_back(static_cast<const char*>(all[rank].const_data_ptr()),
                       static_cast<std::size_t>(sizes[rank][0].item<int64_t>()));
  return texts;
}

std::string Group::from_writer(const std::string& text) { return texts(writer() ? text : std::string()).front(); }

void Group::require_same(const std::string& what, const std::string& own) {
  const std::vector<std::string> hashes = texts(xxh128(own));
  for (std::size_t rank = 1; rank < hashes.size(); ++rank)
    if (hashes[rank] != hashes.front())
      throw Error(ExitCode::bad_recipe, what + " of " + meeting_->name_of(static_cast<int>(rank)) +
                                            " differs from that of " + meeting_->name_of(0));
}

void Group::require_apart(const std::vector<std::string>& own) {
  std::string text;
  for (const std::string& device : own) text += device + "\n";
  const std::vector<std::string> all = texts(text);
  std::map<std::string, int> users;  // of a device of a machine
  for (int rank = 0; rank < place_.size; ++rank) {
    std::istringstream devices(all[static_cast<std::size_t>(rank)]);
    for (std::string device; std::getline(devices, device);) {
      const auto [user, fresh] =
          users.emplace(meeting_->peers()[static_cast<std::size_t>(rank)].host + "\n" + device, rank);
      if (fresh || user->second == rank) continue;
      throw Error(ExitCode::unavailable,
                  "placement.devices: " + meeting_->name_of(user->second) + " and " + meeting_->name_of(rank) +
                      " would both use " + device +
                      "; start fewer processes on that machine, or let each see a device of its own (srun "
                      "--gpus-per-task 1, or CUDA_VISIBLE_DEVICES)");
    }
  }
}

First Group::first(int64_t own) {
  const at::Tensor all = joined(at::scalar_tensor(own, at::kLong).view({1}));
  for (int rank = 0; rank < place_.size; ++rank)
    if (const auto value = all[rank].item<int64_t>(); value != 0) return {value, rank};
  return {};
}

at::Tensor Group::joined(const at::Tensor& own) {
  if (!exchange_) return own;
  return exchange_->gather(own.detach().cpu().contiguous()).flatten(0, 1).to(own.device());
}

void Group::use(at::DeviceType type, OpenLane open) {
  if (exchange_) exchange_->use(type, open);
}

bool Group::carries(at::Device device) const { return exchange_ && exchange_->carries(device); }

void Group::abandon() {
  if (meeting_) meeting_->abandon();
}

at::Tensor Group::mean(const at::Tensor& flat) {
  if (!exchange_) return flat;
  const int64_t ranks = place_.size, each = (flat.numel() + ranks - 1) / ranks;
  const at::Tensor padded = at::constant_pad_nd(flat, {0, each * ranks - flat.numel()});
  // Each rank sums its slice of all ranks' values, then everybody gets all slices.
  const at::Tensor slices = exchange_->swap(padded.view({ranks, each}));
  at::Tensor sum = slices[0].clone();
  for (int64_t rank = 1; rank < ranks; ++rank) sum.add_(slices[rank]);
  sum.div_(static_cast<double>(ranks));
  return exchange_->gather(sum).view({-1}).narrow(0, 0, flat.numel());
}

First Group::average(const std::vector<at::Tensor>& tensors) {
  if (!exchange_) return {};
  const c10::NoGradGuard no_grad;
  bool finite = true;
  for (const Bucket& bucket : buckets_of(tensors)) {
    at::Tensor flat = packed(tensors, bucket);
    if (!carries(flat.device())) flat = flat.cpu();
    finite = finite && at::isfinite(flat).all().item<bool>();
    unpack(mean(flat), tensors, bucket);
  }
  return first(finite ? 0 : 1);
}

void Group::together(const std::function<void()>& work) {
  if (!meeting_) return work();
  const auto fail = [this](const Error& error) {
    meeting_->fail(error);
    throw error.context("rank " + std::to_string(place_.rank));
  };
  try {
    work();
    barrier();
    meeting_->leave();
  } catch (const Error& error) {
    fail(error);
  } catch (const c10::OutOfMemoryError& error) {
    fail(with_advice(ExitCode::out_of_memory, error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    fail(with_advice(ExitCode::out_of_memory, "the machine is out of memory"));
  } catch (const c10::AcceleratorError& error) {
    fail(with_advice(exit_code_of_device_error(error.get_error_code()), error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    const bool memory = says_out_of_memory(error.what_without_backtrace());
    fail(with_advice(memory ? ExitCode::out_of_memory : ExitCode::failed, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    fail(Error(ExitCode::failed, error.what()));
  }
}

}  // namespace trainer::distributed
