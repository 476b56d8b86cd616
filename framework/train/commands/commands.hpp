/// @file The engine's commands, one source each (command_*.cpp). All throw Error; none returns on failure.
#pragma once

#include <train/assembly/request.hpp>

namespace trainer::train {

int command_run(const Request& request);
int command_check(const Request& request);
int command_prove(const Request& request);
int command_explain(const Request& request);
int command_cache(const Request& request);
int command_sample(const Request& request);
int command_export(const Request& request);
int command_inspect(const Request& request);
int command_plugins_check(const Request& request);
int command_doctor(const Request& request);
int command_plan(const Request& request);

}  // namespace trainer::train
