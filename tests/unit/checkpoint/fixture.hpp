/// @file What the checkpoint tests share: a folder that goes away, a state to save, and code run in a forked child.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <checkpoint/store.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <support/parity.hpp>

namespace trainer::checkpoint {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "trainer-ckpt-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Tensors of several types; `salt` makes states differ.
inline Content content_of(int salt) {
  Content content;
  content.tensors["param.a"] = at::arange(12, at::kFloat).view({3, 4}) / 7 + salt;
  content.tensors["optim.a.step"] = at::full({}, salt, at::kFloat);
  content.tensors["average.updates"] = at::full({}, salt, at::kLong);
  content.tensors["param.half"] = (at::arange(5, at::kFloat) / 3 + salt).to(at::kBFloat16);
  content.state = "{\"step\": " + std::to_string(salt) + "}\n";
  return content;
}

inline void expect_same(const Content& one, const Content& two) {
  EXPECT_EQ(one.state, two.state);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (const auto& [name, tensor] : one.tensors) {
    ASSERT_TRUE(two.tensors.contains(name)) << name;
    EXPECT_TRUE(test::same_bits(tensor, two.tensors.at(name))) << name;
  }
}

/// Names in a folder, hidden ones too.
inline std::set<std::string> entries(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

inline void write_text(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

/// Runs `body` in a forked child and returns what it returned: "" for success, "SKIP ..." for not possible here.
inline std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string result;
    try {
      result = body();
    } catch (const std::exception& error) {
      result = std::string("uncaught: ") + error.what();
    }
    const bool written = ::write(ends[1], result.data(), result.size()) == static_cast<ssize_t>(result.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string result;
  char buffer[4096];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    result.append(buffer, static_cast<std::size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result += " child ended with status " + std::to_string(status);
  return result;
}

/// From now on this process is refused what the permissions of a file refuse its owner, also when it is root's.
inline bool without_roots_rights() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> rights{};
  if (::syscall(SYS_capget, &header, rights.data()) != 0) return false;
  rights[0].effective &= ~(1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH);
  return ::syscall(SYS_capset, &header, rights.data()) == 0;
}

}  // namespace trainer::checkpoint
