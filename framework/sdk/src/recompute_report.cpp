/// @file What recomputation reports of a block: bytes kept, operations run, kept and left out
/// (RecomputeState::reports).
#include <set>

#include "recomputation.hpp"

namespace trainer::recompute {
namespace {

std::string name_of(const HeavyOp& op) { return op.op + "#" + std::to_string(op.index); }

/// Where a block's report stands: under its type. A plan may run blocks of one type differently; the treatment that is
/// met first has the type alone, each other one says what it keeps, so that none hides another.
RecomputeReport& report_of(const Recomputation& recomputation) {
  auto& reports = recomputation.run.state->reports;
  const std::string& type = recomputation.block.info().type;
  const auto first = reports.find(type);
  if (first == reports.end() || first->second.kept == recomputation.report.kept) return reports[type];
  std::string list;
  for (const std::string& op : recomputation.report.kept) list += (list.empty() ? "" : ", ") + op;
  return reports[type + " keeping " + (list.empty() ? "nothing" : list)];
}

/// Bytes of what the node of a recomputed block keeps of its flow, each storage counted once.
int64_t input_bytes(const Flow& flow, const BlockRun& run) {
  if (run.store != nullptr) return 0;
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const auto* list : {&flow.carried, &flow.shared})
    for (const at::Tensor& tensor : *list)
      if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
        bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

}  // namespace

void report_forward(Recomputation& recomputation, const Flow& flow) {
  const BlockRun& run = recomputation.run;
  if (run.state == nullptr) return;
  run.state->input_bytes[recomputation.block.info().type] = input_bytes(flow, run);
  if (!recomputation.region) return;
  const OpRegion& region = *recomputation.region;
  RecomputeReport& report = recomputation.report;
  report.forward_calls = region.ran();
  report.forward_flops = region.ran_flops();
  report.kept_bytes = region.kept_bytes();
  for (const HeavyOp& op : region.calls())
    if (region.is_kept(op.position)) report.kept.push_back(name_of(op));
  report.kept_calls = static_cast<int64_t>(report.kept.size());
  report_of(recomputation) = report;
}

void report_replay(Recomputation& recomputation) {
  if (recomputation.run.state == nullptr || !recomputation.region) return;
  const OpRegion& region = *recomputation.region;
  RecomputeReport& report = recomputation.report;
  report.recomputed_calls = region.ran();
  report.recomputed_flops = region.ran_flops();
  report.elided_calls = static_cast<int64_t>(region.dead.size());
  report.elided_flops = 0;
  report.dead.clear();
  for (const int64_t position : region.dead) {
    const HeavyOp& op = region.calls()[static_cast<std::size_t>(position)];
    report.elided_flops += op.flops;
    report.dead.push_back(name_of(op));
  }
  report_of(recomputation) = report;
}

}  // namespace trainer::recompute
