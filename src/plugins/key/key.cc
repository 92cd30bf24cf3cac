// Preloaded into Triton servers: keeps the administration key out of the process list.
//
// Triton takes the key on its command line alone, and every user of the machine can read that. So the command line
// has a placeholder where the key belongs, and the key comes by the environment, which only the same user and root can
// read. Before main() the argument is replaced by a copy that has the key; the command line that the kernel shows is
// the memory that the program was started with, and stays unchanged. The variable is removed, so that the server's
// children do not inherit it. Only a program called tritonserver is touched: a shell or a guard that starts it would
// otherwise pass the key on as an argument. Needs nothing but the C library.

#include <cstdlib>
#include <cstring>

namespace {

constexpr char kPlaceholder[] = "@ARLO_WORKER_KEY@";
constexpr char kVariable[] = "ARLO_WORKER_KEY";

bool is_triton(const char* program) {
  const char* slash = std::strrchr(program, '/');
  return std::strcmp(slash == nullptr ? program : slash + 1, "tritonserver") == 0;
}

// glibc hands its constructors the very argv that main() gets.
__attribute__((constructor)) void put_key(int argc, char** argv, char** /*environment*/) {
  const char* key = std::getenv(kVariable);
  if (key == nullptr || argc < 1 || !is_triton(argv[0])) return;
  for (int i = 1; i < argc; ++i) {
    const char* at = std::strstr(argv[i], kPlaceholder);
    if (at == nullptr) continue;
    const size_t before = static_cast<size_t>(at - argv[i]);
    const char* after = at + sizeof(kPlaceholder) - 1;
    const size_t key_size = std::strlen(key);
    const size_t after_size = std::strlen(after) + 1;
    char* text = static_cast<char*>(std::malloc(before + key_size + after_size));  // for as long as the process lives
    if (text == nullptr) std::abort();  // a placeholder would be a key that is no secret
    std::memcpy(text, argv[i], before);
    // The rest, with its end, follows. NOLINTNEXTLINE(bugprone-not-null-terminated-result)
    std::memcpy(text + before, key, key_size);
    std::memcpy(text + before + key_size, after, after_size);
    argv[i] = text;
  }
  unsetenv(kVariable);
}

}  // namespace
