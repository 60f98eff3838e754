// A cache by gomemcache: `client PORT`. A line for each operation.
package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	client := memcache.New("127.0.0.1:" + os.Args[1])
	odd := []byte{}
	for value := 0; value < 256; value++ {
		odd = append(odd, byte(value))
	}
	odd = append(odd, "\r\nflush_all\r\n"...)
	large := bytes.Repeat([]byte("x"), 900000)

	item := func(key string, data []byte) *memcache.Item { return &memcache.Item{Key: key, Value: data} }
	text := func(key string, data string) *memcache.Item { return item(key, []byte(data)) }
	is := func(key string, data []byte) bool {
		got, problem := client.Get(key)
		return problem == nil && bytes.Equal(got.Value, data)
	}
	missing := func(key string) bool {
		_, problem := client.Get(key)
		return problem == memcache.ErrCacheMiss
	}
	say := func(operation string, well bool) {
		outcome := "failed"
		if well {
			outcome = "ok"
		}
		fmt.Println(operation, outcome)
	}
	say("set", client.Set(text("key", "hello")) == nil)
	say("get", is("key", []byte("hello")))
	say("missing", missing("nothing"))
	say("add", client.Add(text("other", "1")) == nil && client.Add(text("other", "2")) == memcache.ErrNotStored)
	say("replace", client.Replace(text("other", "10")) == nil)
	many, _ := client.GetMulti([]string{"key", "other", "nothing"})
	say("many", len(many) == 2 && string(many["other"].Value) == "10")
	client.Set(text("n", "10"))
	more, _ := client.Increment("n", 5)
	say("incr", more == 15)
	less, problem := client.Decrement("n", 20)
	say("decr", less == 0 && problem == nil)
	client.Set(text("text", "b"))
	say("append", client.Append(text("text", "c")) == nil && is("text", []byte("bc")))
	say("prepend", client.Prepend(text("text", "a")) == nil && is("text", []byte("abc")))
	first, _ := client.Get("key")
	second, _ := client.Get("key")
	say("cas", client.CompareAndSwap(first) == nil && client.CompareAndSwap(second) == memcache.ErrCASConflict)
	say("touch", client.Touch("key", 100) == nil)
	say("expiry", client.Set(&memcache.Item{Key: "key", Value: odd, Expiration: -1}) == nil && missing("key"))
	say("large", client.Set(item("large", large)) == nil && is("large", large))
	say("any-bytes", client.Set(item("odd", odd)) == nil && is("odd", odd))
	say("delete", client.Delete("odd") == nil && missing("odd"))
	say("flush_all", client.FlushAll() == nil && missing("large"))
}
