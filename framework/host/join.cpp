#include <base/log.hpp>
#include <host/host.hpp>
#include <identity/same_run.hpp>

#include <algorithm>
#include <chrono>
#include <optional>

namespace trainer::host {
namespace {

/// How long a rank that failed waits for the others, which may have failed as well.
constexpr std::chrono::seconds kPatience{30};

}  // namespace

Member::Member(const assembly::Request& asked) : request(asked), place(distributed::find_place()) {
  if (place.rank == 0) return;
  request.quiet = true;
  set_log_level(LogLevel::error);
}

distributed::Group Member::join() const {
  const std::chrono::seconds timeout(request.timeout);
  if (!request.failure) return {place, timeout};
  std::optional<distributed::Group> ranks;
  try {
    ranks.emplace(place, std::min(timeout, kPatience));
  } catch (const Error&) {
    throw request.failure->context("rank " + std::to_string(place.rank));
  }
  ranks->together([this] { throw *request.failure; });
  throw *request.failure;
}

std::unique_ptr<assembly::Assembly> resumed_assembly(const Member& member) {
  const auto assemble = [&](const assembly::Request& request) {
    return std::make_unique<assembly::Assembly>(request, assembly::Assembly::Use::run, member.place);
  };
  const assembly::Request& request = member.request;
  identity::require_named_checkpoint(request.resume);  // before the folder of the run is made
  std::unique_ptr<assembly::Assembly> made = assemble(request);
  if (request.resume_with != "checkpoint") return made;
  const auto overrides = identity::overrides_to_checkpoint(made->recipe(), made->loader().found(), request.resume);
  if (overrides.empty()) return made;
  made.reset();
  assembly::Request changed = request;
  changed.overrides.insert(changed.overrides.end(), overrides.begin(), overrides.end());
  made = assemble(changed);
  log_warning(identity::gone_on_as_checkpoint(overrides));
  return made;
}

}  // namespace trainer::host
