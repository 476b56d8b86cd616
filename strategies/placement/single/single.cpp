/// @file The trivial placement: everything on one device, one micro-batch after the other.
#include <trainer/sdk/plugin.hpp>

#include <string>

namespace {

class Single final : public trainer::Placement {
 public:
  trainer::PlacementPlan plan(const trainer::PlacementRequest& request) const override {
    if (request.devices.size() != 1)
      throw trainer::Error(trainer::ExitCode::bad_recipe,
                           "placement.devices: \"single\" takes one device, the recipe names " +
                               std::to_string(request.devices.size()) + "; choose placement.kind = \"split\"");
    trainer::PlacementPlan plan;
    plan.prologue = plan.epilogue = request.devices[0];
    plan.blocks.assign(request.blocks.size(), request.devices[0]);
    for (int64_t micro = 0; micro < request.micro_batches; ++micro) {
      plan.schedule.push_back({trainer::Pass::forward, 0, micro});
      plan.schedule.push_back({trainer::Pass::backward, 0, micro});
    }
    return plan;
  }
};

void init(trainer::Registrar& registrar) {
  registrar.add(trainer::PlacementComponent{
      "single",
      [](const trainer::Options&) -> std::unique_ptr<trainer::Placement> { return std::make_unique<Single>(); }});
}

}  // namespace

TRAINER_PLUGIN("single", "0.1.0", init)
