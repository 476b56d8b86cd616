#include <c10/util/Exception.h>
#include <base/device_error.hpp>
#include <plugin/guard.hpp>
#include <trainer/sdk/error.hpp>

#include <new>

namespace trainer::plugin {

void rethrow_as_plugin_error(const std::string& plugin, const std::string& phase) {
  try {
    throw;
  } catch (const PluginError&) {
    throw;
  } catch (const Error&) {
    throw;  // a message for the user with its own exit code: damaged weights, a wrong option
  } catch (const c10::OutOfMemoryError&) {
    throw;  // handled where memory is planned
  } catch (const c10::AcceleratorError&) {
    throw;  // the device's fault, with an exit code of its own
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    if (says_out_of_memory(error.what_without_backtrace())) throw;
    throw PluginError(plugin, phase, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw PluginError(plugin, phase, error.what());
  } catch (...) {
    throw PluginError(plugin, phase, "an exception that is no std::exception");
  }
}

}  // namespace trainer::plugin
