#include <base/units.hpp>
#include <planning/placement_report.hpp>

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace trainer::planning {
namespace {

std::string parts_of(const execution::Stage& stage, const PlacementRequest& request) {
  std::string text = stage.prologue ? "prologue" : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (stage.end == stage.first + 1) add(request.blocks[stage.first].name);
  if (stage.end > stage.first + 1) add(request.blocks[stage.first].name + " to " + request.blocks[stage.end - 1].name);
  if (stage.epilogue) add("epilogue");
  return text;
}

PartCost sum_of(const execution::Stage& stage, const PlacementRequest& request) {
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

}  // namespace

Timeline timeline_of(const PlacementPlan& plan, std::span<const double> seconds) {
  Timeline timeline;
  const std::vector<execution::Stage> stages = execution::stages_of(plan);
  std::map<std::string, double> free;                              // by device
  std::map<std::tuple<Pass, std::size_t, int64_t>, double> ended;  // forwards and backwards
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const ScheduleStep& step = plan.schedule[i];
    const auto s = static_cast<std::size_t>(step.stage);
    double& device = free[stages[s].device.str()];
    double start = device;
    const auto after = [&](Pass pass, std::size_t stage) {
      start = std::max(start, ended[{pass, stage, step.micro_batch}]);
    };
    if (step.pass == Pass::forward && s > 0) after(Pass::forward, s - 1);
    if (step.pass == Pass::backward && s + 1 < stages.size()) after(Pass::backward, s + 1);
    device = start + seconds[i];
    ended[{step.pass, s, step.micro_batch}] = device;
    timeline.makespan = std::max(timeline.makespan, device);
    timeline.serial += seconds[i];
    timeline.working[stages[s].device.str()] += seconds[i];
  }
  return timeline;
}

PlacementReport report_placement(const PlacementPlan& plan, const PlacementRequest& request, double backward) {
  PlacementReport report;
  const std::vector<execution::Stage> stages = execution::stages_of(plan);
  std::vector<double> flops;
  for (const execution::Stage& stage : stages) {
    const PartCost sum = sum_of(stage, request);
    flops.push_back(sum.flops);
    DeviceShare& share = share_of(report.devices, stage.device);
    share.parts += (share.parts.empty() ? "" : ", ") + parts_of(stage, request);
    share.weight_bytes += sum.weight_bytes;
    share.flops += sum.flops;
  }
  std::vector<double> work;
  for (const ScheduleStep& step : plan.schedule)
    work.push_back(flops[static_cast<std::size_t>(step.stage)] * (step.pass == Pass::forward ? 1 : backward));
  const Timeline timeline = timeline_of(plan, work);
  report.makespan = timeline.makespan;
  report.serial = timeline.serial;
  for (DeviceShare& share : report.devices) share.busy = timeline.busy(share.device);
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

}  // namespace trainer::planning
