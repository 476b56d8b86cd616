/// @file The one error type of host and plugins: a message for the user and the exit code the program ends with.
///
/// Header-only and free of LibTorch, so that the front (which loads no LibTorch) throws the same type. Messages say
/// what is wrong, where (file:line:col, tensor, key), the nearest valid name and what to do. Exit codes follow
/// sysexits.h where it has one; the table is in docs/exit-codes.md.
#pragma once

#include <trainer/sdk/abi.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace trainer {

enum class ExitCode : int {
  done = 0,
  failed = 1,               ///< a defect of ours or an unclassified failure
  usage = 2,                ///< command line
  plugin_rejected = 3,      ///< a plugin was refused or failed
  bad_input = 65,           ///< a damaged or unusable file: weights, images, captions, tokenizer, checkpoint
  not_found = 66,           ///< a named file or folder does not exist
  unavailable = 69,         ///< LibTorch, a device or a library is missing
  io = 74,                  ///< reading or writing failed
  preempted = 75,           ///< stopped by a signal after saving; run the same command again to go on
  non_finite = 76,          ///< loss or gradient became NaN or infinite
  locked = 77,              ///< another run holds the folder, or no permission
  bad_recipe = 78,          ///< the recipe is wrong
  out_of_memory = 80,
  collective_timeout = 81,
  device_lost = 82,
  interrupted = 130,
};

/// Thrown for everything a user can act on. Catch by reference; add where it happened with `context`.
class TRAINER_API Error : public std::runtime_error {
 public:
  /// `code` is the stable identifier of the broken rule (e.g. "ST_TRUNCATED_DATA"), empty where none is defined.
  Error(ExitCode exit_code, const std::string& message, std::string code = {})
      : std::runtime_error(message), exit_code_(exit_code), code_(std::move(code)) {}
  [[nodiscard]] ExitCode exit_code() const noexcept { return exit_code_; }
  [[nodiscard]] const std::string& code() const noexcept { return code_; }
  /// A copy whose message starts with `where` and a colon, e.g. `throw error.context("while caching \"cat.png\"")`.
  [[nodiscard]] Error context(const std::string& where) const { return {exit_code_, where + ": " + what(), code_}; }

 private:
  ExitCode exit_code_;
  std::string code_;
};

/// A plugin was refused or one of its calls failed.
/// `phase` is one of find, manifest, open, handshake, fingerprint, init, or the call that failed.
class TRAINER_API PluginError : public Error {
 public:
  PluginError(const std::string& plugin, std::string phase, const std::string& cause,
              ExitCode exit_code = ExitCode::plugin_rejected)
      : Error(exit_code, "plugin \"" + plugin + "\", " + phase + ": " + cause), phase_(std::move(phase)) {}
  [[nodiscard]] const std::string& phase() const noexcept { return phase_; }

 private:
  std::string phase_;
};

}  // namespace trainer
