// Leases, delays and keys by gomemcache: `client PORT QUEUE`. A line for each row of the table.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var client *memcache.Client
var queue string

func connected() *memcache.Client {
	client := memcache.New("127.0.0.1:" + os.Args[1])
	client.Timeout = 20 * time.Second
	return client
}

func key(word any) string { return fmt.Sprintf("%s/%v", queue, word) }

func set(word string, data string) bool {
	return client.Set(&memcache.Item{Key: queue + word, Value: []byte(data)}) == nil
}

func add(word string) bool {
	return client.Add(&memcache.Item{Key: queue + word, Value: []byte("added")}) == nil
}

func get(word string) string {
	item, problem := client.Get(queue + word)
	if problem != nil {
		return problem.Error()
	}
	return string(item.Value)
}

func take(more string) (string, uint64) {
	item, problem := client.Get(key("open/lease=30000" + more))
	if problem != nil {
		return problem.Error(), 0
	}
	return string(item.Value), item.CasID
}

func del(word any) bool { return client.Delete(key(word)) == nil }

func touch(word any, seconds int32) bool { return client.Touch(key(word), seconds) == nil }

func said(row string, outcomes ...bool) {
	for _, outcome := range outcomes {
		if !outcome {
			fmt.Println(row, "failed", outcomes)
			return
		}
	}
	fmt.Println(row, "ok")
}

func main() {
	queue = os.Args[2]
	client = connected()
	set("", "job")
	value, token := take("")
	fmt.Println("token", token)
	client.Close()
	client = connected()
	said("lease", value == "job", del(token), !del(token))
	set("", "job")
	last := key("open/lease=30000/t=5000")
	found, _ := client.GetMulti([]string{queue + "-none/open/lease=30000/t=5000", last})
	said("several", len(found) == 1 && found[last] != nil && del(found[last].CasID))
	set("", "job")
	_, token = take("/t=5000")
	said("extend", touch(token, 60), touch(fmt.Sprintf("%d/lease=60000", token), 0))
	said("give-back", touch(token, 0))
	_, token = take("/t=5000")
	said("give-back-later", touch(fmt.Sprintf("%d/delay=50", token), 0))
	_, token = take("/t=5000")
	said("failed", touch(fmt.Sprintf("%d/failed", token), 0))
	_, after := take("/t=5000")
	said("late", !touch(token, 60), !del(token))
	del(after)
	none := memcache.ErrCacheMiss.Error()
	said("delay", set("/delay=100", "later"), get("") == none, get("/t=5000") == "later")
	said("key", set("/key=order-17", "once"), set("/key=order-17", "once"), get("") == "once", get("") == none)
	said("add", !add("/key=order-17"), add("/key=order-18"), get("") == "added")
	set("/delay=60000/key=order-19", "later")
	said("cancel", del("key=order-19"), !del("key=order-19"))
}
