// The trace mode's counting: from what each thread did, alone, to what its warp asked of the memory. See trace.cpp.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <string>
#include <vector>

#include "cuda_host.h"

namespace cuda_host::trace {

using Address = unsigned long long;

enum class Kind : unsigned char { none, load, store, atomic };
enum Space : unsigned char { global_memory, shared_memory };

struct Counts {  // of one instruction
    Kind kind = Kind::none;
    long long requests = 0, lanes = 0, bytes = 0;  // bytes: those that some lane asked for, each once
    long long sectors = 0, ideal_sectors = 0;      // of 32 bytes; global memory
    long long wavefronts = 0, ideal_wavefronts = 0;  // shared memory
    // The first request with the most lanes, for the picture. starts: in shared memory, the first lane of each group
    // that is served together.
    unsigned example_mask = 0, example_size = 0, example_warp = 0, example_block = 0, example_starts = 0;
    Address example[warp_size] = {};
    std::string array;  // that it accesses
};

struct Node {          // an instruction, or a call, as reached by one chain of calls
    unsigned context;  // the node of the call that led here; 0: none
    const void* pc;    // where the compiler's call returns to, just after the instruction
    Counts counts[2];  // by Space
};

struct Event {        // an access; with kind none, the entry into a basic block
    Address address;
    unsigned node;
    Kind kind;
    Space space;
    unsigned char size;
};

// The paths of some lanes of a warp as a graph, and where paths that part meet again. A step of a path is any number;
// the graph gives each an index of its own.
class Flow {
  public:
    static constexpr unsigned entry = 0, exit = 1;

    void clear() {
        for (unsigned i = 0; i < size_; ++i) next_[i].clear(), previous_[i].clear();
        for (const unsigned step : known_) index_of_[step] = 0;
        known_.clear();
        size_ = 2;
    }

    // Adds the path of one lane; `indices` becomes the index of each step, and exit after them.
    template <class Steps>
    void add(const Steps& steps, std::vector<unsigned>& indices) {
        indices.clear();
        unsigned at = entry;
        for (const unsigned step : steps) {
            connect(at, index(step));
            indices.push_back(at = index(step));
        }
        connect(at, exit);
        indices.push_back(exit);
    }
    unsigned step(unsigned index) const { return index == exit ? exit : known_[index - 2]; }
    unsigned size() const { return size_; }

    // For each index, the first one that all paths from it share: its immediate postdominator, by the algorithm of
    // Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", on the graph with its edges reversed.
    std::vector<unsigned> meetings() const {
        std::vector<unsigned> order, number(size_), meet(size_, none);
        visit(exit, order, number);
        meet[exit] = exit;
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t k = order.size() - 1; k-- > 0;) {
                unsigned shared = none;
                for (const unsigned after : next_[order[k]]) {
                    if (meet[after] == none) continue;
                    if (shared == none) shared = after;
                    for (unsigned other = after; shared != other;)
                        (number[shared] < number[other] ? shared : other) =
                            meet[number[shared] < number[other] ? shared : other];
                }
                changed = changed || meet[order[k]] != shared;
                meet[order[k]] = shared;
            }
        }
        return meet;
    }

  private:
    static constexpr unsigned none = ~0u;

    unsigned index(unsigned step) {
        if (index_of_.size() <= step) index_of_.resize(step + 1);
        if (index_of_[step] == 0) {
            known_.push_back(step);
            index_of_[step] = size_++;
            if (next_.size() < size_) next_.resize(size_), previous_.resize(size_);
        }
        return index_of_[step];
    }
    void connect(unsigned from, unsigned to) {
        if (std::find(next_[from].begin(), next_[from].end(), to) != next_[from].end()) return;
        next_[from].push_back(to);
        previous_[to].push_back(from);
    }
    // Appends what leads to `first` in postorder, without recursion: it runs on a fiber's small stack.
    void visit(unsigned first, std::vector<unsigned>& order, std::vector<unsigned>& number) const {
        std::vector<bool> seen(size_);
        std::vector<std::pair<unsigned, size_t>> open{{first, 0}};
        seen[first] = true;
        while (!open.empty()) {
            const unsigned at = open.back().first;
            if (open.back().second == previous_[at].size()) {
                number[at] = static_cast<unsigned>(order.size());
                order.push_back(at);
                open.pop_back();
            } else if (const unsigned to = previous_[at][open.back().second++]; !seen[to]) {
                seen[to] = true;
                open.push_back({to, 0});
            }
        }
    }

    unsigned size_ = 2;
    std::vector<unsigned> index_of_, known_;  // by step, 0: none yet; the steps that have one
    std::vector<std::vector<unsigned>> next_{2}, previous_{2};
};

// Replays the logs of warps and adds what their lanes ask for to the nodes' counts.
class Replay {
  public:
    explicit Replay(std::vector<Node>& nodes) : nodes_(nodes) {}

    // The warp `warp` of the block `block`, with the logs of its `count` lanes.
    void run(const std::vector<Event>* lanes, unsigned count, unsigned warp, unsigned block) {
        lanes_ = lanes, warp_ = warp, block_ = block, all_ = 0;
        for (unsigned lane = 0; lane < count; ++lane) {
            // What a lane does after its last access is as good as its end.
            size_t length = lanes[lane].size();
            while (length && lanes[lane][length - 1].kind == Kind::none) --length;
            length_[lane] = length;
            all_ |= (length ? 1u : 0u) << lane;
        }
        if (!all_) return;
        if (is_uniform()) {
            const std::vector<Event>& first = lanes_[lowest(all_)];
            for (size_t k = 0; k < length_[lowest(all_)]; ++k) {
                if (first[k].kind == Kind::none) continue;
                std::fill(at_, at_ + warp_size, k);
                step(all_);
            }
            return;
        }
        flow_.clear();
        for (unsigned rest = all_; rest; rest &= rest - 1) {
            steps_.clear();
            for (const Event& event : lanes_[lowest(rest)]) steps_.push_back(event.node);
            flow_.add(steps_, path_[lowest(rest)]);
        }
        goes_on_.assign(flow_.size(), false);
        for (unsigned rest = all_; rest; rest &= rest - 1)
            for (size_t k = 0; k < length_[lowest(rest)]; ++k) goes_on_[path_[lowest(rest)][k]] = true;
        meet_ = flow_.meetings();
        std::fill(at_, at_ + warp_size, 0);
        go(part(all_, meet_[Flow::entry]));
    }

  private:
    static unsigned lowest(unsigned mask) { return static_cast<unsigned>(__builtin_ctz(mask)); }

    bool is_uniform() const {
        const std::vector<Event>& first = lanes_[lowest(all_)];
        for (unsigned rest = all_ & (all_ - 1); rest; rest &= rest - 1) {
            const std::vector<Event>& other = lanes_[lowest(rest)];
            if (length_[lowest(rest)] != length_[lowest(all_)]) return false;
            for (size_t k = 0; k < length_[lowest(all_)]; ++k)
                if (other[k].node != first[k].node) return false;
        }
        return true;
    }

    unsigned position(unsigned lane) const { return path_[lane][at_[lane]]; }
    unsigned those_at(unsigned index, unsigned group) const {
        unsigned mask = 0;
        for (unsigned rest = group; rest; rest &= rest - 1)
            if (position(lowest(rest)) == index) mask |= 1u << lowest(rest);
        return mask;
    }

    // Takes the lanes of `group`, which stand at one step, to where others wait for them, or to their end.
    void go(unsigned group) {
        while (group) {
            const unsigned index = position(lowest(group));
            if (index == Flow::exit || std::find(stops_.begin(), stops_.end(), index) != stops_.end()) return;
            step(group);
            if (those_at(position(lowest(group)), group) != group) group = part(group, meet_[index]);
        }
    }
    // Takes lanes that stand at several steps to the index `meet`, each side alone. Returns those there.
    unsigned part(unsigned group, unsigned meet) {
        if (!goes_on_[meet]) meet = meeting_of_those_that_go_on(group);
        if (meet != Flow::exit) stops_.push_back(meet);
        for (unsigned rest = group; rest;) {
            const unsigned side = those_at(position(lowest(rest)), rest);
            go(side);
            rest &= ~side;
        }
        if (meet == Flow::exit) return 0;
        stops_.pop_back();
        return those_at(meet, group);
    }

    // A lane that ends is not waited for: a GPU takes it out of the warp. So where lanes part and some of them end
    // before they meet the others, those others meet as if it were not there.
    unsigned meeting_of_those_that_go_on(unsigned group) {
        std::vector<unsigned> side_of(flow_.size());  // that comes by an index: where it starts; entry: none does
        std::vector<bool> is_shared(flow_.size());
        const auto for_each = [&](unsigned lanes, const auto& f) {
            for (unsigned rest = lanes; rest; rest &= rest - 1)
                for (size_t k = at_[lowest(rest)]; path_[lowest(rest)][k] != Flow::exit; ++k)
                    f(lowest(rest), path_[lowest(rest)][k]);
        };
        for_each(group, [&](unsigned lane, unsigned index) {
            if (side_of[index] == Flow::entry) side_of[index] = position(lane);
            if (side_of[index] != position(lane)) is_shared[index] = goes_on_[index];
        });
        unsigned meeting = 0;
        for_each(group, [&](unsigned lane, unsigned index) { meeting |= (is_shared[index] ? 1u : 0u) << lane; });
        if (!meeting) return Flow::exit;
        Flow flow;
        std::vector<unsigned> indices;
        for (unsigned rest = meeting; rest; rest &= rest - 1) {
            const std::vector<unsigned>& path = path_[lowest(rest)];
            steps_.assign(path.begin() + static_cast<long>(at_[lowest(rest)]), path.end() - 1);
            flow.add(steps_, indices);
        }
        const unsigned meet = flow.step(flow.meetings()[Flow::entry]);
        return goes_on_[meet] ? meet : Flow::exit;
    }

    // The next event of each lane of `group`, which is the same instruction.
    void step(unsigned group) {
        Address global[warp_size], shared[warp_size];
        unsigned global_lanes = 0, shared_lanes = 0, size = 0, node = 0;
        Kind kind = Kind::none;
        for (unsigned rest = group; rest; rest &= rest - 1) {
            const unsigned lane = lowest(rest);
            const Event& event = lanes_[lane][at_[lane]++];
            if (event.kind == Kind::none) continue;
            kind = event.kind, node = event.node, size = event.size;
            (event.space == shared_memory ? shared : global)[lane] = event.address;
            (event.space == shared_memory ? shared_lanes : global_lanes) |= 1u << lane;
        }
        if (global_lanes) request(nodes_[node].counts[global_memory], kind, global_lanes, global, size, false);
        if (shared_lanes) request(nodes_[node].counts[shared_memory], kind, shared_lanes, shared, size, true);
    }

    void request(Counts& c, Kind kind, unsigned mask, const Address* addresses, unsigned size, bool is_shared) {
        Address sorted[warp_size];
        unsigned count = 0;
        for (unsigned rest = mask; rest; rest &= rest - 1) sorted[count++] = addresses[lowest(rest)];
        std::sort(sorted, sorted + count);
        long long bytes = 0, sectors = 0;
        Address covered = 0, next_sector = 0;  // up to where bytes and sectors have been counted
        for (unsigned i = 0; i < count; ++i) {
            const Address end = sorted[i] + size, begin = std::max(sorted[i], covered);
            if (begin < end) bytes += static_cast<long long>(end - begin);
            covered = std::max(covered, end);
            const Address first = std::max(sorted[i] / 32, next_sector), last = (end - 1) / 32;
            if (first <= last) sectors += static_cast<long long>(last - first + 1);
            next_sector = std::max(next_sector, last + 1);
        }
        c.kind = kind;
        ++c.requests;
        c.lanes += count;
        c.bytes += bytes;
        unsigned starts = 0;
        if (is_shared) {
            if (kind != Kind::atomic) starts = count_wavefronts(c, kind, mask, addresses, size);
        } else {
            c.sectors += sectors;
            c.ideal_sectors += (bytes + 31) / 32;
        }
        if (count <= static_cast<unsigned>(__builtin_popcount(c.example_mask))) return;
        c.example_mask = mask, c.example_size = size, c.example_warp = warp_, c.example_block = block_;
        c.example_starts = starts;
        std::copy(addresses, addresses + warp_size, c.example);
    }

    // Shared memory has 32 banks of 4 bytes. A wavefront serves one 4-byte word of each bank, to any number of lanes.
    // Lanes that move 8 bytes are served by halves of a warp, those that move 16 by quarters. Two neighbouring halves
    // or quarters that load share wavefronts where neighbours agree. These rules were found by measuring: they give
    // what an H200 counts for each of the 312 patterns of loads and 312 of stores in tests/host_kernels/banks.cu.
    // Returns the lanes with which groups that are served together begin.
    static unsigned count_wavefronts(Counts& c, Kind kind, unsigned mask, const Address* addresses, unsigned size) {
        const unsigned lanes = size <= 4 ? 32 : 128 / size;
        unsigned starts = 0;
        for (unsigned first = 0; first < warp_size;) {
            unsigned together = lanes;
            if (kind == Kind::load && lanes < 32 && neighbours_agree(mask, addresses, first, first + 2 * lanes))
                together = 2 * lanes;
            const unsigned depth = deepest_bank(mask, addresses, first, first + together, size);
            c.wavefronts += depth;
            c.ideal_wavefronts += depth > 0;
            starts |= 1u << first;
            first += together;
        }
        return starts;
    }
    // Whether each lane has the address of the lane beside it, or each that of the lane two beside it; a lane that
    // takes no part agrees with any.
    static bool neighbours_agree(unsigned mask, const Address* addresses, unsigned first, unsigned end) {
        bool by_one = true, by_two = true;
        for (unsigned lane = first; lane < end; ++lane) {
            const auto agree = [&](unsigned other) {
                return !(mask >> lane & mask >> other & 1) || addresses[lane] == addresses[other];
            };
            by_one = by_one && agree(lane ^ 1);
            by_two = by_two && agree(lane ^ 2);
        }
        return by_one || by_two;
    }
    // The most different words that lanes want of one bank.
    static unsigned deepest_bank(unsigned mask, const Address* addresses, unsigned first, unsigned end, unsigned size) {
        std::vector<Address> in_bank[32];
        size_t deepest = 0;
        for (unsigned lane = first; lane < end; ++lane) {
            if (!(mask >> lane & 1)) continue;
            for (Address word = addresses[lane] / 4; word <= (addresses[lane] + size - 1) / 4; ++word) {
                std::vector<Address>& bank = in_bank[word % 32];
                if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
                deepest = std::max(deepest, bank.size());
            }
        }
        return static_cast<unsigned>(deepest);
    }

    std::vector<Node>& nodes_;
    const std::vector<Event>* lanes_ = nullptr;
    unsigned warp_ = 0, block_ = 0, all_ = 0;
    size_t length_[warp_size], at_[warp_size];  // of each lane's log, and how far it has come
    Flow flow_;
    std::vector<bool> goes_on_;  // by index: whether some lane makes an access there or later
    std::vector<unsigned> steps_, stops_;  // stops: where lanes that have parted meet, the innermost last
    std::vector<unsigned> path_[warp_size], meet_;
};

}  // namespace cuda_host::trace
