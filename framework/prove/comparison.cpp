#include <c10/util/Exception.h>
#include <base/device_error.hpp>
#include <base/units.hpp>
#include <prove/comparison.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace trainer::prove {

std::string join(const std::vector<std::string>& names, const std::string& none) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " + ") + name;
  return text.empty() ? none : text;
}

std::string table_head() {
  return "Heavy operations: those of all steps, with what the first one tests (it runs every recomputed block several "
         "times).\nCells that are not run since nothing recomputes hold a strategy that has nothing to do without "
         "one that does; it is tested in the others.\n\n| model | dtype | trained | micro-batches | strategies | "
         "compared with | tolerance | peak | heavy operations "
         "| "
         "result |\n|---|---|---|---|---|---|---|---|---|---|\n";
}

std::string Row::text() const {
  char allowed[64] = "0";
  if (apart) std::snprintf(allowed, sizeof allowed, "%g, dense %g", tolerance.rounding, tolerance.dense);
  return "| " + setting + " | " + subset + " | " + against + " | " + (heavy.empty() ? "" : allowed) + " | " +
         (heavy.empty() ? "" : format_bytes(static_cast<double>(peak_bytes))) + " | " + heavy + " | " + result + " |";
}

void judge(Row& row, bool may_refuse, const std::function<void()>& call, const std::function<void()>& out_of_memory) {
  const auto failed = [&](const char* text) {
    row.verdict = Row::failed;
    row.result = std::string("FAILED: ") + text;
  };
  try {
    call();
  } catch (const Error& error) {
    // Strategies may refuse each other, and one may need another: that is told as a mistake of the recipe.
    if (error.exit_code() != ExitCode::bad_recipe || !may_refuse) return failed(error.what());
    row.verdict = Row::refused;
    row.result = std::string("refused: ") + error.what();
  } catch (const c10::Error& error) {
    if (out_of_memory && (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
                          says_out_of_memory(error.what_without_backtrace())))
      return out_of_memory();
    failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    failed(error.what());
  }
}

void measure(Row& row, const Trajectory& run) {
  row.peak_bytes = run.peak_bytes;
  row.heavy = run.heavy_operations();
}

void compare(Row& row, const Trajectory& run, const Trajectory& expected) {
  const auto difference = first_difference(run, expected);
  row.verdict = difference ? Row::differs : Row::equal;
  if (difference) row.largest = difference->largest;
  row.result = difference ? "DIFFERS: " + difference->text()
                          : "bit-equal: " + std::to_string(run.losses.size()) + " losses, " +
                                std::to_string(run.gradient_count()) + " gradients, " +
                                std::to_string(run.weights.size()) + " trained tensors";
}

void compare_expanded(Row& row, const Trajectory& run, const Trajectory& expanded, const recipe::Tolerance& tolerance) {
  compare(row, run, expanded);
  if (row.verdict == Row::equal || tolerance.rounding == 0) return;
  const bool near = is_near_dense(row, run, expanded, tolerance);
  row.verdict = near ? Row::equal : Row::differs;
  row.result = (near ? "within the declared rounding: " : "TOO FAR: ") + row.apart->text();
}

bool is_near_dense(Row& row, const Trajectory& run, const Trajectory& dense, const recipe::Tolerance& tolerance) {
  row.tolerance = tolerance;
  row.apart = distance(run, dense);
  return row.apart->within(tolerance.dense);
}

}  // namespace trainer::prove
