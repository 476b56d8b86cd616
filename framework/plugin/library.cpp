#include <boost/dll/shared_library.hpp>
#include <plugin/library.hpp>

#include <list>
#include <system_error>

namespace trainer::plugin {

const void* open(const std::filesystem::path& file, Scope scope) {
  using boost::dll::load_mode::type;
  // Leaked on purpose: unloading a library that owns a tensor deleter or an autograd node crashes at exit.
  static auto& opened = *new std::list<boost::dll::shared_library>;
  const type visibility =
      scope == Scope::global ? boost::dll::load_mode::rtld_global : boost::dll::load_mode::rtld_local;
  try {
    opened.emplace_back(file, boost::dll::load_mode::rtld_now | visibility);
  } catch (const std::system_error& error) {
    std::string text = error.what();
    const std::string before = "(dlerror system message: ";
    if (const auto begin = text.find(before); begin != std::string::npos) {
      text.erase(0, begin + before.size());
      if (const auto end = text.rfind("): "); end != std::string::npos) text.erase(end);
    }
    throw OpenError(text);
  }
  return &opened.back();
}

const void* find(const void* library, const std::string& symbol) {
  const auto& lib = *static_cast<const boost::dll::shared_library*>(library);
  return lib.has(symbol) ? static_cast<const void*>(&lib.get<const char>(symbol)) : nullptr;
}

}  // namespace trainer::plugin
