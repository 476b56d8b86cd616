#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <base/printable.hpp>
#include <text/regex.hpp>
#include <trainer/sdk/error.hpp>

#include <optional>
#include <utility>

namespace trainer::text {
namespace {

constexpr std::size_t kMaxPatternBytes = 64 * 1024;
// PCRE2's own default is 10 million steps a match; a caption never needs a thousandth of that.
constexpr uint32_t kMaxMatchSteps = 10'000'000;
constexpr uint32_t kMaxHeapKib = 256 * 1024;
// Unicode White_Space, which is what Oniguruma means by \s. PCRE2's \s also holds U+180E.
constexpr std::string_view kSpace = R"(\p{Z}\x{09}-\x{0D}\x{85})";
// PCRE2 10.42 leaves marks and connector punctuation out of \w.
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";

Error regex_error(std::string_view pattern, std::size_t offset, const std::string& why) {
  return {ExitCode::bad_input,
          "regular expression \"" + printable(pattern) + "\", offset " + std::to_string(offset) + ": " + why,
          "TOK_REGEX"};
}

std::string message_of(int number) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(number, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// Walks a pattern once, rewriting escapes; knows whether it is inside a character class.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        inside_class(c);
      else
        outside_class(c);
    }
    return std::move(out_);
  }

 private:
  void copy(std::size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) throw regex_error(pattern_, at_, "ends in a backslash");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return replace(kSpace, false);
      case 'S':
        return in_class_ ? copy(2) : replace(kSpace, true);
      case 'w':
        return replace(kWord, false);
      case 'W':
        if (in_class_) refuse("\\W inside a character class");
        return replace(kWord, true);
      case 'h':
      case 'H':
        return refuse("\\h means a hexadecimal digit in one library and a space in another");
      default:
        return copy(2);
    }
  }

  void replace(std::string_view characters, bool negated) {
    if (in_class_)
      out_.append(characters);
    else
      out_.append(negated ? "[^" : "[").append(characters).append("]");
    at_ += 2;
  }

  void inside_class(char c) {
    if (c == '[' && pattern_.substr(at_, 2) != "[:") refuse("a class inside a class");
    if (pattern_.substr(at_, 2) == "&&") refuse("an intersection of classes");
    if (c == '[') {  // [:alpha:]
      const std::size_t end = pattern_.find(":]", at_);
      if (end == std::string_view::npos) refuse("an unfinished [: class");
      return copy(end + 2 - at_);
    }
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void outside_class(char c) {
    if (c == '^' || c == '$') refuse("line anchors");
    copy(1);
    if (c != '[') return;
    in_class_ = true;
    if (at_ < pattern_.size() && pattern_[at_] == '^') copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') copy(1);  // a literal bracket in both libraries
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw regex_error(pattern_, at_, "not supported: " + what + " (regex libraries disagree about it)");
  }

  std::string_view pattern_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

template <auto Free>
struct Deleter {
  void operator()(auto* pointer) const { Free(pointer); }
};
using Code = std::unique_ptr<pcre2_code, Deleter<&pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<&pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<&pcre2_compile_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<&pcre2_match_data_free>>;

std::size_t character_end(std::string_view text, std::size_t at) {
  ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

}  // namespace

struct Regex::Impl {
  std::string pattern;
  Code code;
  MatchContext limits;

  /// The first match at or after `at`.
  std::optional<Span> find(std::string_view text, std::size_t at, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // The caller checked the text; without the flag every call would check all of it again.
    int found = pcre2_match(code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, limits.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter keeps its stack on the heap
      found = pcre2_match(code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, limits.get());
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0)
      throw Error(ExitCode::bad_input,
                  "regular expression \"" + printable(pattern) + "\" gave up at byte " + std::to_string(at) +
                      " of the text: " + message_of(found) + "; shorten the text",
                  "TOK_REGEX");
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    if (ends[0] > ends[1] || ends[0] < at)  // \K in a look-around
      throw regex_error(pattern, 0, "matches backwards");
    return Span{ends[0], ends[1], true};
  }

  static std::shared_ptr<const Impl> make(std::string_view shown, std::string_view translated, uint32_t options) {
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context || pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes) != 0)
      throw regex_error(shown, 0, "out of memory");
    int number = 0;
    PCRE2_SIZE offset = 0;
    auto impl = std::make_shared<Impl>();
    impl->pattern = shown;
    impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &number,
                                   &offset, context.get()));
    if (!impl->code) throw regex_error(translated, offset, message_of(number));
    pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter matches the same
    impl->limits.reset(pcre2_match_context_create(nullptr));
    if (!impl->limits) throw regex_error(shown, 0, "out of memory");
    pcre2_set_match_limit(impl->limits.get(), kMaxMatchSteps);
    pcre2_set_depth_limit(impl->limits.get(), kMaxMatchSteps);
    pcre2_set_heap_limit(impl->limits.get(), kMaxHeapKib);
    return impl;
  }
};

Regex Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) throw regex_error(pattern.substr(0, 80), 0, "longer than 64 KiB");
  return Regex(Impl::make(pattern, translate_oniguruma(pattern), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C));
}

Regex Regex::literal(std::string_view text) { return Regex(Impl::make(text, text, PCRE2_UTF | PCRE2_LITERAL)); }

std::vector<Span> Regex::split(std::string_view text) const {
  std::vector<Span> parts;
  const MatchData data(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  if (!data) throw Error(ExitCode::out_of_memory, "no memory to match a regular expression");
  std::size_t done = 0;  // end of the last part
  std::optional<std::size_t> last_end;
  for (std::size_t at = 0; at <= text.size();) {
    const std::optional<Span> match = impl_->find(text, at, data.get());
    if (!match) break;
    if (match->begin == match->end && last_end == match->end) {
      at = character_end(text, at);  // an empty match right behind a match counts for nothing
      continue;
    }
    if (match->begin != done) parts.push_back({done, match->begin, false});
    parts.push_back(*match);
    done = at = match->end;
    last_end = match->end;
  }
  if (done != text.size()) parts.push_back({done, text.size(), false});
  return parts;
}

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace trainer::text
