// An address, and its connections on all lanes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/fleet/lane.h"
#include "transport/listener.h"

namespace arlo::gateway {

using Lanes = std::vector<std::unique_ptr<Lane>>;

class Port {
 public:
  // The port's connections on one lane; used only by its thread.
  class Part {
   public:
    Part() = default;
    virtual ~Part() = default;
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    virtual void adopt(int fd) = 0;
    virtual void run_out() = 0;  // descriptors have run out
    // New connections are refused; existing ones are to end.
    virtual void drain() = 0;
    virtual void close_all() = 0;
    [[nodiscard]] virtual std::size_t connections() const = 0;

   private:
    friend class Port;
    std::optional<transport::Listener> listener_;
  };

  // Accepts connections once the lanes run, which outlive it; without an address none. `option`: names the address in
  // errors. Throws std::invalid_argument when it cannot be served.
  Port(const char* option, const std::string& address, Lanes& lanes,
       const std::function<std::unique_ptr<Part>(Lane&)>& make);

  [[nodiscard]] const std::string& address() const { return address_; }  // with the real port; empty: none
  void drain();
  void close_all();
  [[nodiscard]] std::size_t connections();

 private:
  void on_each(const std::function<void(Part&)>& work);

  Lanes& lanes_;
  std::string address_;
  std::vector<std::unique_ptr<Part>> parts_;  // one per lane; the first one listens
  std::size_t next_ = 0;                      // lane for the next connection; on the first lane
};

}  // namespace arlo::gateway
