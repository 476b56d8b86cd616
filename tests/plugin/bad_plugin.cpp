/// @file Plugins made to be refused (and one to be accepted): one source, one define each. Faults before `init` need
/// no component, so those libraries include the handshake alone.
#include <trainer/sdk/fingerprint.hpp>

#include <stdexcept>

#if defined(WITH_COMPONENTS)
#include <trainer/sdk/plugin.hpp>

namespace {

[[maybe_unused]] std::unique_ptr<trainer::MemoryStrategy> make(const trainer::Options&) {
  return std::make_unique<trainer::MemoryStrategy>();
}

void init(void* pointer) {
  auto& registrar = *static_cast<trainer::Registrar*>(pointer);
#if defined(CASE_TWINS)
  registrar.add(trainer::MemoryComponent{"first_twin", &make});
  registrar.add(trainer::MemoryComponent{"second_twin", &make});
#elif defined(CASE_TAKEN)
  registrar.add(trainer::MemoryComponent{"taken_innocent", &make});
  registrar.add(trainer::MemoryComponent{"first_twin", &make});
#elif defined(CASE_OTHER)
  registrar.add(trainer::MemoryComponent{"something_else", &make});
#elif defined(CASE_NO_FACTORY)
  registrar.add(trainer::MemoryComponent{"no_factory", nullptr});
#elif defined(CASE_THROWS)
  registrar.add(trainer::MemoryComponent{"throws", &make});
  throw std::runtime_error("no licence for Tuesdays");
#elif defined(CASE_THROWS_ERROR)
  registrar.add(trainer::MemoryComponent{"throws_error", &make});
  throw trainer::Error(trainer::ExitCode::unavailable, "the licence server does not answer");
#endif
}

}  // namespace
#else
void defined_nowhere();
namespace {
[[maybe_unused]] void init(void*) {
#if defined(CASE_THROWS_INT)
  throw 7;
#elif defined(CASE_UNDEFINED)
  defined_nowhere();
#endif
}
}  // namespace
#endif

#if defined(CASE_MAGIC)
#define MAGIC 0x12345678U
#else
#define MAGIC TRAINER_PLUGIN_MAGIC
#endif
#if defined(CASE_SIZE)
#define SIZE 16
#else
#define SIZE sizeof(trainer_plugin_v1)
#endif
#if defined(CASE_MAJOR)
#define MAJOR (TRAINER_API_MAJOR + 1)
#else
#define MAJOR TRAINER_API_MAJOR
#endif
#if defined(CASE_MINOR)
#define MINOR (TRAINER_API_MINOR + 1)
#else
#define MINOR TRAINER_API_MINOR
#endif
#if defined(CASE_RENAMED)
#define NAME "another_name"
#elif defined(CASE_NO_NAME)
#define NAME nullptr
#else
#define NAME CASE_NAME
#endif
#if defined(CASE_FINGERPRINT)
#define FINGERPRINT "sdk=0.0.9;torch=2.11.0;cxx11abi=0;asan=0"
#else
#define FINGERPRINT TRAINER_SDK_FINGERPRINT
#endif

#if !defined(CASE_NO_SYMBOL)
extern "C" TRAINER_API const trainer_plugin_v1 trainer_plugin;
const trainer_plugin_v1 trainer_plugin = {MAGIC, SIZE, MAJOR, MINOR, NAME, "0.1.0", FINGERPRINT, &init};
#endif
