#include <boost/dll/shared_library.hpp>
#include <plugin/library.hpp>

#include <elf.h>

#include <algorithm>
#include <fstream>
#include <list>
#include <system_error>
#include <vector>

namespace trainer::plugin {

/// The dynamic loader maps what the headers promise and dies of a bus error when the file ends before it: a copy that
/// stopped half way must be found here. Everything else is the loader's to judge.
void require_whole(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (!stream || error) return;
  Elf64_Ehdr header{};
  stream.read(reinterpret_cast<char*>(&header), sizeof header);
  const auto* const magic = static_cast<const unsigned char*>(header.e_ident);
  if (stream.gcount() < SELFMAG || !std::equal(magic, magic + SELFMAG, ELFMAG))
    throw OpenError(file.string() + " is no shared library");
  std::uintmax_t needed = sizeof header;
  if (stream && header.e_phentsize == sizeof(Elf64_Phdr)) {
    std::vector<Elf64_Phdr> parts(header.e_phnum);
    needed = header.e_phoff + parts.size() * sizeof(Elf64_Phdr);
    stream.seekg(static_cast<std::streamoff>(header.e_phoff));
    stream.read(reinterpret_cast<char*>(parts.data()), static_cast<std::streamsize>(parts.size() * sizeof(Elf64_Phdr)));
    if (stream)
      for (const Elf64_Phdr& part : parts) needed = std::max<std::uintmax_t>(needed, part.p_offset + part.p_filesz);
  }
  if (size < needed)
    throw OpenError(file.string() + " is cut short: " + std::to_string(size) + " bytes of at least " +
                    std::to_string(needed));
}

const void* open(const std::filesystem::path& file, Scope scope) {
  using boost::dll::load_mode::type;
  // Leaked on purpose: unloading a library that owns a tensor deleter or an autograd node crashes at exit.
  static auto& opened = *new std::list<boost::dll::shared_library>;
  const type visibility =
      scope == Scope::global ? boost::dll::load_mode::rtld_global : boost::dll::load_mode::rtld_local;
  require_whole(file);
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
