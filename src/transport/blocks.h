// Memory for large data that may never be complete, such as a message that a client sends slowly or does not end.
//
// It consists of separately mapped blocks, so it grows without copying and returns to the system bit by bit. Returning
// a GB at once blocks a thread for 80 ms, whichever thread frees it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace arlo::transport {

class Blocks {
 public:
  static constexpr std::size_t kBytes = 128 << 10;

  Blocks() = default;
  ~Blocks() { clear(); }
  Blocks(Blocks&& other) noexcept : blocks_(std::move(other.blocks_)), size_(std::exchange(other.size_, 0)) {}
  Blocks& operator=(Blocks&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(size_, other.size_);
    return *this;
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  void append(std::string_view bytes);  // throws std::bad_alloc
  void clear();
  std::string take();  // all bytes; empties it. 50 MB take 40 ms: not for a thread that serves others
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t held() const { return blocks_.size() * kBytes; }

 private:
  static void release(char* block);

  std::vector<char*> blocks_;
  std::size_t size_ = 0;
};

// The free blocks of the calling thread. Threads without this object return blocks at once.
class FreeBlocks {
 public:
  FreeBlocks();
  ~FreeBlocks();
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;

  // Returns a few blocks to the system and keeps a few. False: no more to return.
  bool give_back();

 private:
  friend class Blocks;
  std::vector<char*> free_;
  static thread_local constinit FreeBlocks* here_;
};

}  // namespace arlo::transport
