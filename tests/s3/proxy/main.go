// A reverse proxy in front of an S3 server: it adds latency to each call, counts the calls, and makes faults.
//
// Its own calls, in JSON, are below a path that no bucket can have:
//
//	GET /-/counts     calls, bytes and statuses by operation, and the most calls in flight, since the last reset
//	POST /-/reset     begin to count at nothing
//	PUT /-/latency    {"PUT": 50, "CONDITIONAL_PUT": 50, "GET": 20}: mean milliseconds by operation; others have none
//	PUT /-/faults     {"seed": 1, "faults": [fault, ...]}: replaces those that were there
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The share of a call's latency that is the same for all calls; the rest is exponential.
const fixedShare = 0.7

// What happens to some of the calls. Latency and delays of all faults that hit a call add up; the first that hits it
// and has an answer of its own decides the answer.
type fault struct {
	Probability float64  `json:"probability"`
	Operations  []string `json:"operations"` // none: all
	Prefix      string   `json:"prefix"`     // of the key, without the bucket
	// Whether the store acts on the call although it is answered otherwise.
	Acts bool `json:"acts"`
	// The connection is reset instead of an answer.
	Reset bool `json:"reset"`
	// The answer's status (0: the store's own answer), S3's code of the error, and Retry-After if it is not empty.
	Status     int    `json:"status"`
	Code       string `json:"code"`
	RetryAfter string `json:"retry_after"`
	// Seconds before the call is done: all of them the same, and the mean of an exponential share.
	DelayS float64 `json:"delay_s"`
	TailS  float64 `json:"tail_s"`
	// Lists lack the keys that were first written fewer seconds ago.
	StaleS float64 `json:"stale_s"`
}

func (f *fault) answers() bool { return f.Reset || f.Status != 0 }

type operation struct {
	Calls    int64            `json:"calls"`
	BytesIn  int64            `json:"bytes_in"`
	BytesOut int64            `json:"bytes_out"`
	Statuses map[string]int64 `json:"statuses"`
}

type proxy struct {
	backend string
	client  *http.Transport

	lock       sync.Mutex
	random     *rand.Rand
	latency    map[string]float64
	faults     []fault
	hits       []int64
	operations map[string]*operation
	inFlight   int64
	most       int64
	since      time.Time
	// When a key was first written, kept while lists may be stale.
	written map[string]time.Time
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: proxy BACKEND_HOST:PORT HOST:PORT")
	}
	p := &proxy{
		backend: os.Args[1],
		client: &http.Transport{
			MaxIdleConnsPerHost: 4096,
			IdleConnTimeout:     5 * time.Second,
			DisableCompression:  true,
			WriteBufferSize:     64 << 10,
			ReadBufferSize:      64 << 10,
		},
		random:  rand.New(rand.NewPCG(1, 0)),
		latency: map[string]float64{},
	}
	p.reset()
	control := http.NewServeMux()
	control.HandleFunc("GET /-/counts", p.showCounts)
	control.HandleFunc("POST /-/reset", func(w http.ResponseWriter, _ *http.Request) { p.reset() })
	control.HandleFunc("PUT /-/latency", p.setLatency)
	control.HandleFunc("PUT /-/faults", p.setFaults)
	log.Fatal(http.ListenAndServe(os.Args[2], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/-/") {
			control.ServeHTTP(w, r)
		} else {
			p.serve(w, r)
		}
	})))
}

// One call of S3.
func (p *proxy) serve(w http.ResponseWriter, r *http.Request) {
	name, key := operationOf(r), keyOf(r)
	p.begin(name)
	status, in, out := 0, int64(0), int64(0)
	defer func() { p.end(name, status, in, out) }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went
	}
	in = int64(len(body))
	wait, answer, staleS := p.draw(name, key)
	if !pause(r, wait) {
		return
	}
	var response *http.Response
	var content []byte
	if answer == nil || answer.Acts {
		if response, content, err = p.forward(r, body); err != nil {
			log.Printf("%s %s: %v", r.Method, r.URL.Path, err)
			reset(w)
			return
		}
		if response.StatusCode == http.StatusOK && r.Method == http.MethodPut {
			p.noteWritten(key)
		}
		if staleS > 0 {
			content = p.withoutFresh(content, staleS)
			response.Header.Set("Content-Length", strconv.Itoa(len(content)))
		}
	}
	switch {
	case answer == nil:
		response.Header.Del("Connection") // it is of the store's connection
		for header, values := range response.Header {
			w.Header()[header] = values
		}
		status, out = response.StatusCode, int64(len(content))
		w.WriteHeader(status)
		_, _ = w.Write(content)
	case answer.Reset:
		reset(w)
	default:
		status = answer.Status
		refuse(w, answer)
	}
}

// The store's answer to a call, read whole.
func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	// the path and the Host stay as the client signed them
	address := *r.URL
	address.Scheme, address.Host = "http", p.backend
	asked := &http.Request{
		Method: r.Method, URL: &address, Host: r.Host, Header: r.Header, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)),
	}
	if len(body) == 0 {
		asked.Body = nil
	}
	asked.Header.Del("Expect")
	asked.Header.Del("Connection")
	response, err := p.client.RoundTrip(asked)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response, content, err
}

// How long a call waits, the fault that answers it if any, and how old a key must be to be in a list.
func (p *proxy) draw(name, key string) (time.Duration, *fault, float64) {
	p.lock.Lock()
	defer p.lock.Unlock()
	seconds, staleS := p.latency[name]/1e3*(fixedShare+(1-fixedShare)*p.random.ExpFloat64()), 0.0
	var answer *fault
	for i := range p.faults {
		f := &p.faults[i]
		if len(f.Operations) > 0 && !slices.Contains(f.Operations, name) || !strings.HasPrefix(key, f.Prefix) {
			continue
		}
		if p.random.Float64() >= f.Probability || f.answers() && answer != nil {
			continue
		}
		p.hits[i]++
		seconds += f.DelayS
		if f.TailS > 0 {
			seconds += f.TailS * p.random.ExpFloat64()
		}
		if f.answers() {
			answer = f
		}
		if name == "LIST" {
			staleS = max(staleS, f.StaleS)
		}
	}
	return time.Duration(seconds * float64(time.Second)), answer, staleS
}

func operationOf(r *http.Request) string {
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPut && (r.Header.Get("If-None-Match") != "" || r.Header.Get("If-Match") != ""):
		return "CONDITIONAL_PUT"
	case r.Method == http.MethodGet && query.Has("list-type"):
		return "LIST"
	case r.Method == http.MethodPost && query.Has("delete"):
		return "DELETE"
	}
	return r.Method
}

// The key of an object, or the prefix of a list, without the bucket.
func keyOf(r *http.Request) string {
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if key == "" {
		return r.URL.Query().Get("prefix")
	}
	return key
}

// Wait; false if the client went meanwhile.
func pause(r *http.Request, wait time.Duration) bool {
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func reset(w http.ResponseWriter) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

func refuse(w http.ResponseWriter, f *fault) {
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>`+f.Code+
		`</Code><Message>a fault of the tests</Message></Error>`)
}

var contents = regexp.MustCompile(`(?s)<Contents>.*?</Contents>`)
var keyTag = regexp.MustCompile(`<Key>(.*?)</Key>`)

func (p *proxy) noteWritten(key string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.written != nil {
		if _, known := p.written[key]; !known {
			p.written[key] = time.Now()
		}
	}
}

func (p *proxy) withoutFresh(list []byte, staleS float64) []byte {
	p.lock.Lock()
	defer p.lock.Unlock()
	return contents.ReplaceAllFunc(list, func(entry []byte) []byte {
		key := keyTag.FindSubmatch(entry)
		if when, known := p.written[string(key[1])]; known && time.Since(when).Seconds() < staleS {
			return nil
		}
		return entry
	})
}

func (p *proxy) begin(name string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.inFlight++
	p.most = max(p.most, p.inFlight)
	if p.operations[name] == nil {
		p.operations[name] = &operation{Statuses: map[string]int64{}}
	}
	p.operations[name].Calls++
}

// Status 0 is a connection that was reset, or a client that went.
func (p *proxy) end(name string, status int, in, out int64) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.inFlight--
	if of := p.operations[name]; of != nil { // nil: the counts were reset while the call was in flight
		of.BytesIn += in
		of.BytesOut += out
		of.Statuses[strconv.Itoa(status)]++
	}
}

func (p *proxy) reset() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.operations, p.most, p.since = map[string]*operation{}, p.inFlight, time.Now()
	p.hits = make([]int64, len(p.faults))
}

func (p *proxy) showCounts(w http.ResponseWriter, _ *http.Request) {
	p.lock.Lock()
	defer p.lock.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{
		"operations": p.operations, "in_flight": p.inFlight, "in_flight_most": p.most,
		"seconds": time.Since(p.since).Seconds(), "hits": p.hits,
	})
}

func (p *proxy) setLatency(w http.ResponseWriter, r *http.Request) {
	wanted := map[string]float64{}
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.latency = wanted
}

func (p *proxy) setFaults(w http.ResponseWriter, r *http.Request) {
	var wanted struct {
		Seed   uint64  `json:"seed"`
		Faults []fault `json:"faults"`
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&wanted); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.random = rand.New(rand.NewPCG(wanted.Seed, 0))
	p.faults, p.hits = wanted.Faults, make([]int64, len(wanted.Faults))
	stale := slices.ContainsFunc(p.faults, func(f fault) bool { return f.StaleS > 0 })
	if stale && p.written == nil {
		p.written = map[string]time.Time{}
	} else if !stale {
		p.written = nil
	}
}
