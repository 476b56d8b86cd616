#include <data/caption.hpp>

#include <data/names.hpp>
#include <trainer/sdk/error.hpp>
#include <base/utf8.hpp>

#include <array>
#include <cstdio>

namespace trainer::data {
namespace {

Error refused(const std::string& reason) { return {ExitCode::bad_input, reason, "CAPTION"}; }

/// The control character that begins at `at` of valid UTF-8 (C0, DEL, or C1, which takes two bytes), or -1.
int control_at(std::string_view text, std::size_t at) {
  const int byte = static_cast<unsigned char>(text[at]);
  if (byte == '\n' || byte == '\t') return -1;
  if (byte < 0x20 || byte == 0x7F) return byte;
  if (byte != 0xC2 || at + 1 == text.size()) return -1;
  const int next = static_cast<unsigned char>(text[at + 1]);
  return next < 0xA0 ? next : -1;
}

}  // namespace

std::string clean_caption(std::string_view bytes) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::size_t skipped = 0;  // editors put a second mark before a first that they did not know
  for (; bytes.starts_with(kByteOrderMark); skipped += kByteOrderMark.size())
    bytes.remove_prefix(kByteOrderMark.size());
  if (bytes.size() > kMaxCaptionBytes) {
    throw refused("is longer than " + std::to_string(kMaxCaptionBytes) + " bytes");
  }
  if (const std::size_t bad = invalid_utf8(bytes); bad != std::string_view::npos) {
    throw refused("is not UTF-8 at byte " + std::to_string(bad + skipped));
  }
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') {
      if (i + 1 == bytes.size() || bytes[i + 1] != '\n') text += '\n';
      continue;
    }
    if (const int control = control_at(bytes, i); control >= 0) {
      std::array<char, 16> name;
      std::snprintf(name.data(), name.size(), "U+%04X", static_cast<unsigned>(control));
      throw refused("has the control character " + std::string(name.data()) + " at byte " +
                    std::to_string(i + skipped));
    }
    text += bytes[i];
  }
  text.erase(text.find_last_not_of(" \t\n") + 1);
  return text;
}

std::string with_trigger(const std::string& trigger, const std::string& caption) {
  if (trigger.empty() || composed(caption).find(composed(trigger)) != std::string::npos) return caption;
  return caption.empty() ? trigger : trigger + ", " + caption;
}

}  // namespace trainer::data
