/// @file The split placement: options and request to a plan.
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/plugin.hpp>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>

#include "cut.hpp"
#include "schedule.hpp"

namespace trainer::split {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::bad_recipe, "placement." + what); }

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

/// "24GB", "512 MB", "24GiB", "1000".
int64_t bytes_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  const bool binary = unit.size() == 3 && unit.ends_with("iB");
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  const std::string prefixes = "KMGT";
  if (const auto power = unit.empty() ? std::string::npos : prefixes.find(unit.front());
      power != std::string::npos && (binary || unit.substr(1) == "B"))
    factor = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  if (error != std::errc() || factor == 0 || !(number > 0) || number * factor > 1e18)
    refuse("budgets: \"" + text + "\" is no amount of memory; write e.g. \"24GB\" or \"24GiB\"");
  return static_cast<int64_t>(number * factor);
}

class Split final : public Placement {
 public:
  explicit Split(const Options& options)
      : balance_(options.get<std::string>("balance") == "memory" ? Balance::memory : Balance::compute),
        serial_(options.get<std::string>("schedule") == "serial"),
        at_(options.get<Array>("at")),
        weights_(options.list<double>("weights")) {
    for (const std::string& text : options.list<std::string>("budgets")) budgets_.push_back(bytes_of(text));
  }

  PlacementPlan plan(const PlacementRequest& request) const override {
    check(request);
    const Chain chain = chain_of(request);
    const std::vector<std::size_t> starts = at_.empty() ? balanced(request, chain) : by_hand(request);
    require_budgets(request, chain, starts);
    PlacementPlan plan;
    plan.prologue = request.devices.front();
    plan.epilogue = request.epilogue_apart ? request.devices.back() : request.devices.front();
    for (std::size_t i = 0, stage = 0; i < request.blocks.size(); ++i) {
      if (stage + 1 < starts.size() && i == starts[stage + 1]) ++stage;
      plan.blocks.push_back(request.devices[stage]);
    }
    // An epilogue that must stay with the prologue is one more stage, on the first device.
    const auto stages = static_cast<int64_t>(starts.size()) + (request.epilogue_apart ? 0 : 1);
    plan.schedule =
        serial_ ? serial(stages, request.micro_batches) : one_forward_one_backward(stages, request.micro_batches);
    return plan;
  }

 private:
  void check(const PlacementRequest& request) const {
    const std::size_t devices = request.devices.size();
    if (devices < 2)
      refuse(
          "devices: \"split\" takes two devices or more, the recipe names one; add another or choose "
          "placement.kind = \"single\"");
    for (std::size_t i = 0; i < devices; ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (request.devices[i] == request.devices[j]) refuse("devices: " + request.devices[i].str() + " stands twice");
    if (request.blocks.size() < devices)
      refuse("devices: the model has " + std::to_string(request.blocks.size()) + " blocks, too few for " +
             std::to_string(devices) + " devices");
    const auto require_count = [&](std::size_t count, const std::string& key) {
      if (count != 0 && count != devices)
        refuse(key + ": " + std::to_string(count) + " values for " + std::to_string(devices) + " devices");
    };
    require_count(weights_.size(), "weights");
    require_count(budgets_.size(), "budgets");
    if (!at_.empty() && at_.size() + 1 != devices)
      refuse("at: " + std::to_string(devices) + " devices need " + std::to_string(devices - 1) + " cuts, not " +
             std::to_string(at_.size()));
  }

  static Chain chain_of(const PlacementRequest& request) {
    const auto weighed = [](const PartCost& part) { return Weighed{part.flops, part.weight_bytes}; };
    Chain chain;
    for (const PartCost& part : request.blocks) chain.blocks.push_back(weighed(part));
    chain.first = weighed(request.prologue);
    // Where it stays with the prologue its weights are the first device's.
    if (request.epilogue_apart)
      chain.last = weighed(request.epilogue);
    else
      chain.first.bytes += request.epilogue.weight_bytes;
    return chain;
  }

  std::vector<std::size_t> balanced(const PlacementRequest& request, const Chain& chain) const {
    Devices devices{weights_, budgets_};
    if (devices.weights.empty() && balance_ == Balance::memory)
      devices.weights.assign(budgets_.begin(), budgets_.end());
    if (devices.weights.empty()) devices.weights.assign(request.devices.size(), 1.0);
    if (auto starts = best_cut(chain, devices, balance_)) return *starts;
    std::string limits;
    for (std::size_t d = 0; d < budgets_.size(); ++d)
      limits += (d == 0 ? "" : ", ") + request.devices[d].str() + " " + gigabytes(budgets_[d]);
    const Weighed all = stages(chain, {0}).front();
    refuse("budgets: no cut of the " + std::to_string(request.blocks.size()) + " blocks fits: the weights take " +
           gigabytes(all.bytes) + " in all, the budgets are " + limits + " (" +
           gigabytes(std::accumulate(budgets_.begin(), budgets_.end(), int64_t{0})) +
           "); pack the weights (memory.strategies = [\"fp8_weight_only\"]) or add a device");
  }

  std::vector<std::size_t> by_hand(const PlacementRequest& request) const {
    std::vector<std::size_t> starts{0};
    for (const Value& cut : at_) {
      const std::size_t start = cut.get_if<int64_t>() != nullptr ? by_index(request, *cut.get_if<int64_t>())
                                                                 : by_name(request, *cut.get_if<std::string>());
      if (start <= starts.back())
        refuse("at: the cut before block " + std::to_string(start) + " (\"" + request.blocks[start].name +
               "\") leaves a device without a block; cuts must ascend and lie between 1 and " +
               std::to_string(request.blocks.size() - 1));
      starts.push_back(start);
    }
    return starts;
  }
  static std::size_t by_index(const PlacementRequest& request, int64_t index) {
    const auto last = static_cast<int64_t>(request.blocks.size()) - 1;
    if (index < 1 || index > last)
      refuse("at: there is no cut before block " + std::to_string(index) + "; the model has " +
             std::to_string(last + 1) + " blocks, so 1 to " + std::to_string(last));
    return static_cast<std::size_t>(index);
  }
  static std::size_t by_name(const PlacementRequest& request, const std::string& name) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      if (request.blocks[i].name == name) return i;
      names.push_back(request.blocks[i].name);
    }
    refuse("at: the model has no block \"" + name + "\"" + did_you_mean(name, names) + "; its blocks are \"" +
           names.front() + "\" to \"" + names.back() + "\"");
  }

  void require_budgets(const PlacementRequest& request, const Chain& chain,
                       const std::vector<std::size_t>& starts) const {
    const std::vector<Weighed> sums = stages(chain, starts);
    for (std::size_t d = 0; d < budgets_.size(); ++d)
      if (sums[d].bytes > budgets_[d])
        refuse("budgets: the cuts in placement.at give " + request.devices[d].str() + " weights of " +
               gigabytes(sums[d].bytes) + ", its budget is " + gigabytes(budgets_[d]));
  }

  Balance balance_;
  bool serial_;
  Array at_;
  std::vector<double> weights_;
  std::vector<int64_t> budgets_;
};

void init(Registrar& registrar) {
  registrar.add(PlacementComponent{
      "split", [](const Options& options) -> std::unique_ptr<Placement> { return std::make_unique<Split>(options); }});
}

}  // namespace
}  // namespace trainer::split

TRAINER_PLUGIN("split", "0.1.0", trainer::split::init)
