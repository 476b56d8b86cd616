/// @file The engine's commands, one source each (command_*.cpp). All throw Error; none returns on failure.
#pragma once

#include <assembly/request.hpp>

namespace trainer::engine {

int command_run(const assembly::Request& request);
int command_check(const assembly::Request& request);
int command_prove(const assembly::Request& request);
int command_explain(const assembly::Request& request);
int command_cache(const assembly::Request& request);
int command_sample(const assembly::Request& request);
int command_export(const assembly::Request& request);
int command_inspect(const assembly::Request& request);
int command_plugins_check(const assembly::Request& request);
int command_doctor(const assembly::Request& request);
int command_plan(const assembly::Request& request);

}  // namespace trainer::engine
