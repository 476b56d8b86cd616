#include <sim/clock.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <sim/memory.hpp>
#include <sim/sim.hpp>

namespace trainer::sim {
namespace {

std::atomic<bool> timeline{false};
thread_local std::array<c10::StreamId, kMaxDevices> streams{};

struct Clocks {
  std::mutex mutex;
  Cost cost;
  std::map<std::pair<int, c10::StreamId>, double> stream;
  std::map<std::pair<int, int>, double> link;
  double host = 0;  ///< the host has waited until then
  int epoch = 1;    ///< a reset makes older ready times void
  std::vector<Event> log;
  std::vector<std::string> races, waits, reuses;
};
Clocks& clocks() {
  static auto& instance = *new Clocks;
  return instance;
}

/// With times of this epoch alone.
BlockHeader* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  BlockHeader* header = header_of(tensor.storage().unsafeGetStorageImpl()->data_ptr());
  if (header != nullptr && header->epoch != clocks().epoch)
    *header = {header->bytes, header->device, clocks().epoch, header->pinned, 0, header->stream, {}};
  return header;
}

double* ready_of(const at::Tensor& tensor) {
  BlockHeader* header = block_of(tensor);
  return header == nullptr ? nullptr : &header->ready;
}

/// The place for a stream's use; null for the block's own stream, or when too many others use it.
BlockUse* use_of(BlockHeader& block, c10::StreamId stream) {
  if (stream == block.stream) return nullptr;
  for (BlockUse& use : block.uses)
    if (use.stream == stream || (use.end == 0 && !use.recorded)) {
      use.stream = stream;
      return &use;
    }
  return nullptr;
}

void note_use(int device, const at::Tensor& tensor, double end) {
  BlockHeader* header = block_of(tensor);
  if (header == nullptr || header->device != device) return;
  if (BlockUse* use = use_of(*header, current_stream(device))) use->end = std::max(use->end, end);
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<int64_t>(tensor.element_size()) : 0;
}

double flops_of(const std::string& op, at::ArrayRef<at::Tensor> in, at::ArrayRef<at::Tensor> out) {
  const auto is = [&](const char* name) { return op.find(name) != std::string::npos; };
  const auto size = [](const at::Tensor& tensor, int64_t i) { return static_cast<double>(tensor.size(i)); };
  const auto count = [](const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); };
  if (out.empty() || !out[0].defined()) return 0;
  if (is("::mm") || is("::bmm")) return 2 * count(out[0]) * size(in[0], -1);
  if (is("::addmm") || is("::baddbmm")) return 2 * count(out[0]) * size(in[1], -1);
  if (is("::low_rank_outer")) return 2 * count(out[0]) * size(in[0], 0);
  if (is("::low_rank_")) return 2 * count(out[0]) * size(in[0], -1);
  if (is("convolution_backward")) return 4 * count(in[0]) * count(in[2]) / size(in[2], 0);
  if (is("convolution")) return 2 * count(out[0]) * count(in[1]) / size(in[1], 0);
  if (is("attention") && is("backward")) return 10 * count(in[1]) * size(in[2], -2);
  if (is("attention")) return 4 * count(in[0]) * size(in[1], -2);
  return 0;
}

/// When what reads `tensors` may start; a stream that did not wait for their writers is a race.
double start_after(double clock, at::ArrayRef<at::Tensor> tensors, const std::string& op) {
  double start = clock;
  for (const at::Tensor& tensor : tensors)
    if (const double* ready = ready_of(tensor)) start = std::max(start, *ready);
  if (start > clock) clocks().races.push_back(op);
  return start;
}

void finish_at(const at::Tensor& tensor, double end) {
  if (double* ready = ready_of(tensor)) *ready = std::max(*ready, end);
}

bool host_waits_for(const std::string& op) {
  static const std::set<std::string> names{"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"};
  return names.contains(op);
}

bool is_page_locked(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  const BlockHeader* header = header_of(tensor.storage().unsafeGetStorageImpl()->data_ptr());
  return header != nullptr && header->pinned;
}

void host_waits(const std::string& op, double until) {
  clocks().host = std::max(clocks().host, until);
  clocks().waits.push_back(op);
}

int index_of(const at::Tensor& tensor) { return tensor.is_privateuseone() ? tensor.device().index() : -1; }

}  // namespace

bool timeline_on() { return timeline; }

void account(int device, const std::string& op, at::ArrayRef<at::Tensor> in, at::ArrayRef<at::Tensor> out) {
  Clocks& c = clocks();
  const double flops = flops_of(op, in, out);
  int64_t bytes = 0;
  for (const at::Tensor& tensor : in) bytes += bytes_of(tensor);
  for (const at::Tensor& tensor : out) bytes += bytes_of(tensor);
  const std::lock_guard lock(c.mutex);
  double& clock = c.stream[{device, current_stream(device)}];
  const double start = start_after(std::max(clock, c.host), in, op);
  const double end = start + c.cost.launch + std::max(flops / c.cost.flops, static_cast<double>(bytes) / c.cost.bytes);
  clock = end;
  for (const at::Tensor& tensor : out) finish_at(tensor, end);
  for (const auto list : {in, out})
    for (const at::Tensor& tensor : list) note_use(device, tensor, end);
  if (host_waits_for(op)) host_waits(op, end);
  c.log.push_back({device, current_stream(device), op, start, end, bytes, flops});
}

void account_copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int source = index_of(from), target = index_of(to);
  if (source == target) return account(target, "copy", from, to);
  const std::string name = "copy:" + std::to_string(source) + ">" + std::to_string(target);
  Clocks& c = clocks();
  const std::lock_guard lock(c.mutex);
  double issued = c.host;
  for (const int device : {source, target})
    if (device >= 0) issued = std::max(issued, c.stream[{device, current_stream(device)}]);
  double& link = c.link[{source, target}];
  const double start = std::max(link, start_after(issued, from, name));
  const double end = start + c.cost.link_latency + static_cast<double>(bytes_of(from)) / c.cost.link;
  link = end;
  for (const int device : {source, target})
    if (device >= 0) c.stream[{device, current_stream(device)}] = end;
  // As CUDA does it: only a copy that is asked not to block, from or to page-locked memory, leaves the host free.
  const bool with_host = source < 0 || target < 0;
  if (with_host && !(non_blocking && is_page_locked(source < 0 ? from : to))) host_waits(name, end);
  finish_at(to, end);
  if (source >= 0) note_use(source, from, end);
  if (target >= 0) note_use(target, to, end);
  const int owner = target >= 0 ? target : source;
  c.log.push_back({owner, current_stream(owner), name, start, end, bytes_of(from), 0});
}

void record_use(BlockHeader& block, c10::StreamId stream) {
  const std::lock_guard lock(clocks().mutex);
  if (BlockUse* use = use_of(block, stream)) use->recorded = true;
}

void check_uses(const BlockHeader& block) {
  Clocks& c = clocks();
  const std::lock_guard lock(c.mutex);
  if (block.epoch != c.epoch) return;
  const double now = c.stream[{block.device, block.stream}];
  for (const BlockUse& use : block.uses)
    if (use.end > now && !use.recorded)
      c.reuses.push_back("sim:" + std::to_string(block.device) + ", " + std::to_string(block.bytes) +
                         " bytes of stream " + std::to_string(block.stream) + ", used by stream " +
                         std::to_string(use.stream));
}

c10::StreamId current_stream(int device) { return streams.at(static_cast<std::size_t>(device)); }
void set_current_stream(int device, c10::StreamId stream) { streams.at(static_cast<std::size_t>(device)) = stream; }

double clock_of(int device, c10::StreamId stream) {
  const std::lock_guard lock(clocks().mutex);
  return clocks().stream[{device, stream}];
}
void wait_until(int device, c10::StreamId stream, double time) {
  const std::lock_guard lock(clocks().mutex);
  double& clock = clocks().stream[{device, stream}];
  clock = std::max(clock, time);
}

void set_timeline(bool on) { timeline = on; }
void set_cost(const Cost& cost) {
  const std::lock_guard lock(clocks().mutex);
  clocks().cost = cost;
}
void reset_clocks() {
  Clocks& c = clocks();
  const std::lock_guard lock(c.mutex);
  c.stream.clear();
  c.link.clear();
  c.host = 0;
  c.log.clear();
  c.races.clear();
  c.waits.clear();
  c.reuses.clear();
  ++c.epoch;
}
double makespan() {
  const std::lock_guard lock(clocks().mutex);
  double latest = 0;
  for (const auto& [stream, time] : clocks().stream) latest = std::max(latest, time);
  return latest;
}
double busy(int device) {
  const std::lock_guard lock(clocks().mutex);
  double sum = 0;
  for (const Event& event : clocks().log)
    if (event.device == device && !event.is_copy()) sum += event.end - event.start;
  return sum;
}
std::vector<Event> take_log() {
  const std::lock_guard lock(clocks().mutex);
  return std::exchange(clocks().log, {});
}
std::vector<std::string> take_races() {
  const std::lock_guard lock(clocks().mutex);
  return std::exchange(clocks().races, {});
}
std::vector<std::string> take_early_reuses() {
  const std::lock_guard lock(clocks().mutex);
  return std::exchange(clocks().reuses, {});
}
std::vector<std::string> take_waits() {
  const std::lock_guard lock(clocks().mutex);
  return std::exchange(clocks().waits, {});
}

}  // namespace trainer::sim
