#include <base/printable.hpp>
#include <base/report.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace trainer {

int report_error(ExitCode code, const std::string& message, bool json) {
  const auto status = static_cast<int>(code);
  std::fprintf(stderr, "error: %s\n", printable_lines(message).c_str());
  if (json)
    std::printf("%s\n",
                printable_json(nlohmann::json{{"error", {{"exit_code", status}, {"message", message}}}}).c_str());
  return status;
}

}  // namespace trainer
