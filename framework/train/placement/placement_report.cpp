#include <base/units.hpp>
#include <train/placement/placement_report.hpp>

#include <algorithm>
#include <cstdio>
#include <map>

namespace trainer::train {
namespace {

std::string parts_of(const Stage& stage, const PlacementRequest& request) {
  std::string text = stage.prologue ? "prologue" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (stage.end == stage.first + 1) add(request.blocks[stage.first].name);
  if (stage.end > stage.first + 1) add(request.blocks[stage.first].name + " to " + request.blocks[stage.end - 1].name);
  if (stage.epilogue) add("epilogue");
  return text;
}

PartCost sum_of(const Stage& stage, const PlacementRequest& request) {
  PartCost sum;
  const auto add = [&sum](const PartCost& part) {
    sum.flops += part.flops;
    sum.weight_bytes += part.weight_bytes;
  };
  if (stage.prologue) add(request.prologue);
  for (std::size_t i = stage.first; i < stage.end; ++i) add(request.blocks[i]);
  if (stage.epilogue) add(request.epilogue);
  return sum;
}

DeviceShare& share_of(std::vector<DeviceShare>& shares, at::Device device) {
  for (DeviceShare& share : shares)
    if (share.device == device) return share;
  DeviceShare& share = shares.emplace_back();
  share.device = device;
  return share;
}

/// When the schedule ends if every device works in its order and each step waits for what it needs.
double makespan_of(const PlacementPlan& plan, const std::vector<Stage>& stages, const std::vector<double>& flops,
                   double backward) {
  std::map<std::string, double> free;                              // by device
  std::map<std::tuple<Pass, std::size_t, int64_t>, double> ended;  // forwards and backwards
  double latest = 0;
  for (const ScheduleStep& step : plan.schedule) {
    const auto s = static_cast<std::size_t>(step.stage);
    double& device = free[stages[s].device.str()];
    double start = device;
    const auto after = [&](Pass pass, std::size_t stage) {
      start = std::max(start, ended[{pass, stage, step.micro_batch}]);
    };
    if (step.pass == Pass::forward && s > 0) after(Pass::forward, s - 1);
    if (step.pass == Pass::backward && s + 1 < stages.size()) after(Pass::backward, s + 1);
    device = start + flops[s] * (step.pass == Pass::forward ? 1 : backward);
    ended[{step.pass, s, step.micro_batch}] = device;
    latest = std::max(latest, device);
  }
  return latest;
}

}  // namespace

PlacementReport report_placement(const PlacementPlan& plan, const PlacementRequest& request, double backward) {
  PlacementReport report;
  const std::vector<Stage> stages = stages_of(plan);
  std::vector<double> flops;
  for (const Stage& stage : stages) {
    const PartCost sum = sum_of(stage, request);
    flops.push_back(sum.flops);
    DeviceShare& share = share_of(report.devices, stage.device);
    share.parts += (share.parts.empty() ? "" : ", ") + parts_of(stage, request);
    share.weight_bytes += sum.weight_bytes;
    share.flops += sum.flops;
  }
  report.makespan = makespan_of(plan, stages, flops, backward);
  const double passes = static_cast<double>(request.micro_batches) * (1 + backward);
  for (DeviceShare& share : report.devices) {
    share.busy = report.makespan > 0 ? share.flops * passes / report.makespan : 0;
    report.serial += share.flops * passes;
  }
  return report;
}

std::string PlacementReport::text() const {
  std::string text;
  char numbers[64];
  for (const DeviceShare& share : devices) {
    text += (text.empty() ? "" : "; ") + share.device.str() + " " + share.parts + ", " +
            format_bytes(static_cast<double>(share.weight_bytes));
    if (devices.size() == 1) return text;
    std::snprintf(numbers, sizeof numbers, ", busy %.0f %%", 100 * share.busy);
    text += numbers;
  }
  std::snprintf(numbers, sizeof numbers, "; %.2f x as fast as one after the other", serial / makespan);
  return text + numbers;
}

}  // namespace trainer::train
