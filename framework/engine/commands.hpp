/// @file The engine's commands, one source each. All throw Error; none returns on failure.
#pragma once

#include <engine/requests.hpp>

namespace trainer::engine {

using host::recipe_of;

int command_run(const RunRequest& request);
int command_check(const CheckRequest& request);
int command_prove(const ProveRequest& request);
int command_explain(const ExplainRequest& request);
int command_cache(const RankedRequest& request);
int command_sample(const SampleRequest& request);
int command_export(const ExportRequest& request);
int command_inspect(const InspectRequest& request);
int command_plugins_check(const PluginsCheckRequest& request);
int command_doctor(const Request& request);
int command_plan(const PlanRequest& request);

}  // namespace trainer::engine
